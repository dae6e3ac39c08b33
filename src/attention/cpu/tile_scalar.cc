#define VECINFER_TILE_NS tile_scalar
#include "attention/cpu/tile.inl"

namespace vecinfer::cpu {

const TileKernels& tile_kernels_scalar() {
    return tile_scalar::kTable;
}

}  // namespace vecinfer::cpu
