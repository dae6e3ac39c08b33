#include "tool_verb.h"

namespace vecinfer::cli {

int run_bench(const VerbCall& call) {
    return run_tool_verb({.name = "bench",
                          .summary = "Measures speed (llama-bench) with a compressed KV cache.\n"
                                     "Arguments after `--` go to the tool untouched.",
                          .tool = "llama-bench",
                          .examples = R"(
Examples:
  vecinfer bench -m model.gguf -- -p 512 -n 32 -d 0,8192
  vecinfer bench -m model.gguf --scheme f16 -- -p 512 -n 32 -d 0,8192
  vecinfer bench -m model.gguf --no-plugin -- -p 512 -n 32 -d 0,8192    the stock tool, as a baseline

-d is the number of tokens already in the cache: compression pays at large ones.
Adds -m MODEL, -dev VecInfer and -fa 1, unless given after `--`.
)",
                          .flash_attention = "1",
                          .many_models = true},
                         call);
}

}  // namespace vecinfer::cli
