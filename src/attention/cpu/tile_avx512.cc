#define VECINFER_TILE_NS tile_avx512
#include "attention/cpu/tile.inl"

namespace vecinfer::cpu {

const TileKernels& tile_kernels_avx512() {
    return tile_avx512::kTable;
}

}  // namespace vecinfer::cpu
