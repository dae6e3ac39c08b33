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
  vecinfer perplexity -m model.gguf -- -f test.txt -c 512 --chunks 64
  vecinfer perplexity -m model.gguf --scheme f16 -- -f test.txt -c 512 --chunks 64
  KL divergence against the uncompressed model, which says more than perplexity:
  vecinfer perplexity -m model.gguf --scheme f16 -- -f test.txt --chunks 64 --kl-divergence-base base.kld
  vecinfer perplexity -m model.gguf -- -f test.txt --chunks 64 --kl-divergence-base base.kld --kl-divergence

Adds -m MODEL, -dev VecInfer and -fa on, unless given after `--`.
)"},
        call);
}

}  // namespace vecinfer::cli
