#include <cstdio>

#include "ggml.h"

int main() {
    std::printf("%s;%s", ggml_version(), ggml_commit());
}
