#include "tool_verb.h"

namespace vecinfer::cli {

int run_serve(const VerbCall& call) {
    return run_tool_verb({.name = "serve",
                          .summary = "Starts llama-server (HTTP, OpenAI-compatible) with a compressed KV cache.\n"
                                     "Arguments after `--` go to the tool untouched.",
                          .tool = "llama-server",
                          .examples = R"(
Examples:
  vecinfer serve -m model.gguf
  vecinfer serve -m model.gguf -- --host 127.0.0.1 --port 8080 -c 32768 -np 4
  vecinfer serve -m model.gguf --scheme vecinfer:k4v2 --codebooks other.vecinfer.gguf
  curl http://127.0.0.1:8080/completion -d '{"prompt": "Once upon a time", "n_predict": 32}'

Adds -m MODEL, -dev VecInfer and -fa on, unless given after `--`.
A context that does not fit into memory is an error; `-- -fit on` lets llama.cpp move layers to an uncompressed cache instead.
)"},
                         call);
}

}  // namespace vecinfer::cli
