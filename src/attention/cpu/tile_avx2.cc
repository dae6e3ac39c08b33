#define VECINFER_TILE_NS tile_avx2
#include "attention/cpu/tile.inl"

namespace vecinfer::cpu {

const TileKernels& tile_kernels_avx2() {
    return tile_avx2::kTable;
}

}  // namespace vecinfer::cpu
