// What run, serve, perplexity and bench have in common: they set up the plugin and hand over to a stock llama.cpp tool.
#pragma once

#include <string>
#include <string_view>

#include "verb.h"

namespace vecinfer::cli {

struct ToolVerb {
    std::string_view name;
    std::string_view summary;
    std::string_view tool;      // e.g. "llama-server"
    std::string_view examples;  // end of the help text
    std::string_view flash_attention = "on";
    bool many_models = false;         // options after "--" may list several models or values, comma-separated
    std::string_view chat_tool = {};  // used with --chat; empty: the verb has no --chat
};

int run_tool_verb(const ToolVerb& verb, const VerbCall& call);

}  // namespace vecinfer::cli
