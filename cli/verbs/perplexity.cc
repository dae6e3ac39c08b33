#include "tool_verb.h"

namespace vecinfer::cli {

int run_perplexity(const VerbCall& call) {
    return run_tool_verb(
        {.name = "perplexity",
         .summary = "Measures what compression does to a model (llama-perplexity). Use another text than for calibration.\n"
                    "Arguments after `--` go to the tool untouched.",
         .tool = "llama-perplexity",
         .examples = R"(
Examples:
  vecinfer perplexity -m model.gguf -- -f test.txt -c 2048 -ub 64 --chunks 16
  vecinfer perplexity -m model.gguf --scheme f16 -- -f test.txt -c 2048 -ub 64 --chunks 16
  KL divergence against the uncompressed model, which says more than perplexity:
  vecinfer perplexity -m model.gguf --scheme f16 -- -f test.txt -c 2048 -ub 64 --chunks 16 --kl-divergence-base base.kld
  vecinfer perplexity -m model.gguf -- -f test.txt -c 2048 -ub 64 --chunks 16 --kl-divergence-base base.kld --kl-divergence

The context must be well above the window (128 tokens and 4 sinks by default), which is read in f16; small batches (-ub 64) make
nearly all keys come from codes, as when generating.

Adds -m MODEL, -dev VecInfer and -fa on, unless given after `--`, and keeps llama.cpp from moving layers that do not fit into
memory to an uncompressed cache (LLAMA_ARG_FIT=off; `-- -fit on` allows it).
)"},
        call);
}

}  // namespace vecinfer::cli
