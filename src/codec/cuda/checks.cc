#include "codec/cuda/checks.h"

#include <algorithm>
#include <bit>
#include <climits>

#include "codec/cuda/tables.h"

namespace vecinfer::cuda {

Status check_cache(const LayerCodec& codec, const CacheView& c, int sequences, int new_rows) {
    if (Status s = check_pointer("pages", c.pages, 16); !s.ok()) {
        return s;
    }
    if (c.block_table != nullptr) {
        const int least = codec.page_step();
        if (c.page_size < least || c.page_size > 1 << 20 || !std::has_single_bit(static_cast<unsigned>(c.page_size))) {
            return argument_error("page_size", fmt::format("{}", c.page_size),
                                  fmt::format("a power of two from {} on with a block table", least));
        }
        if (Status s = check_range("table_stride", c.table_stride, 1, INT_MAX); !s.ok()) {
            return s;
        }
        if (Status s = check_range("num_pages", c.num_pages, 1, INT_MAX); !s.ok()) {
            return s;
        }
    } else {
        if (c.page_size < 64 || c.page_size % 64 != 0) {
            return argument_error("page_size", fmt::format("{}", c.page_size), "a multiple of 64 without a block table");
        }
        if (Status s = check_range("num_pages", c.num_pages, sequences, INT_MAX); !s.ok()) {
            return s;
        }
    }
    const LayerCodec::Tables& t = codec.tables();
    int group = 0;  // tokens that are read from f16 rows until they are complete
    for (const CodecSpec& spec : {t.k.spec, t.v.spec}) {
        group = spec.groups_tokens() ? std::max(group, spec.group) : group;
    }
    if (Status s = check_range("recent", c.window.recent, group, 4096); !s.ok()) {
        return s;
    }
    if (Status s = check_range("sink", c.window.sink, 0, 256); !s.ok()) {
        return s;
    }
    if (!has_window(c)) {
        return {};
    }
    Status s = check_pointer("window_k", c.window_k, 16);
    s = s.ok() ? check_pointer("window_v", c.window_v, 16) : s;
    const int least = c.window.sink + (c.window.recent > 0 ? c.window.recent + new_rows - 1 : 0);
    s = s.ok() ? check_range("window_rows", c.window_rows, std::max(least, 1), 1 << 20) : s;
    return s.ok() ? check_range("num_slots", c.num_slots, c.window_slots != nullptr ? 1 : sequences, INT_MAX) : s;
}

}  // namespace vecinfer::cuda
