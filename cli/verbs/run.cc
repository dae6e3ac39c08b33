#include "tool_verb.h"

namespace vecinfer::cli {

int run_run(const VerbCall& call) {
    return run_tool_verb({.name = "run",
                          .summary = "Completes a prompt (llama-completion), or chats, with a compressed KV cache.\n"
                                     "Arguments after `--` go to the tool untouched.",
                          .tool = "llama-completion",
                          .examples = R"(
Examples:
  vecinfer run -m model.gguf -- -p "Once upon a time" -n 64
  vecinfer run -m model.gguf --scheme vecinfer:k4v4 -- -f prompt.txt -c 8192
  vecinfer run -m model.gguf --chat
  vecinfer run -m model.gguf --codebooks none -- -p "Hi"      without the calibration beside the model
  vecinfer run -m model.gguf --scheme f16 -- -p "Hi"          through the plugin, not compressed
  vecinfer run -m model.gguf --no-plugin -- -p "Hi"           the stock tool alone
  vecinfer run -m model.gguf --dry-run -- -p "Hi"             what would be run

Adds -m MODEL, -dev VecInfer, -fa on and -no-cnv (complete the prompt as it is), unless given after `--`.
A context that does not fit into memory is an error; `-- -fit on` lets llama.cpp move layers to an uncompressed cache instead.
)",
                          .chat_tool = "llama-cli"},
                         call);
}

}  // namespace vecinfer::cli
