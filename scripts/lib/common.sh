# Shared by the scripts in this folder: `source` it, do not run it. Progress and errors go to stderr, so that a script's stdout
# stays usable by its caller.
# shellcheck shell=bash disable=SC2034

VECINFER_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)"
# Compilations are remembered relative to the checkout, so that a second clone finds those of the first.
export CCACHE_BASEDIR="$VECINFER_ROOT" CCACHE_NOHASHDIR=1
VECINFER_CACHE="${VECINFER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/vecinfer}"
SCRIPTS="$VECINFER_ROOT/scripts"

# Scripts call each other; the outermost one sets the clock.
export VECINFER_T0="${VECINFER_T0:-$(date +%s)}"

LLAMA_VERSION="$(sed -n 's/^llama-cpp-python==\([^ ]*\).*/\1/p' "$SCRIPTS/requirements/llama-cpp.txt")"
LLAMA_TOOLS=(llama-cli llama-completion llama-server llama-perplexity llama-bench llama-simple llama-speculative-simple
    llama-tokenize)

say() { printf '[%4ds] %s\n' "$(($(date +%s) - VECINFER_T0))" "$*" >&2; }

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# usage: prints the comment block at the top of the calling script.
usage() {
    sed -n '2,${/^#/!q;s/^# \{0,1\}//p}' "$0"
}

# need <what> <check>:<package>...: every check passes, or its packages are installed, or an error that lists them.
# A check is cmd=NAME (a program), hdr=PATH (a C++ header) or py=MODULE (a Python module).
need() {
    local what="$1" item missing=()
    shift
    for item in "$@"; do
        have "${item%%:*}" || missing+=("${item##*:}")
    done
    [ ${#missing[@]} -gt 0 ] || return 0

    local list="${missing[*]}" sudo=()
    if [ "${VECINFER_APT:-1}" = 0 ]; then
        die "$what needs packages that are not installed (VECINFER_APT=0 forbids installing them): apt-get install $list"
    fi
    command -v apt-get >/dev/null || die "$what needs what Debian packages as: $list (no apt-get here; install their counterparts)"
    if [ "$(id -u)" != 0 ]; then
        sudo -n true 2>/dev/null || die "$what needs packages that are not installed: sudo apt-get install $list"
        sudo=(sudo -n)
    fi
    say "installing: $list"
    local log
    log="$(mktemp)"
    if ! { "${sudo[@]}" apt-get update && "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        die "$what needs: $list; apt-get could not install them (messages above)"
    fi
    rm -f "$log"
    for item in "$@"; do
        have "${item%%:*}" || die "$what needs ${item%%:*}; package ${item##*:} is installed but does not provide it"
    done
}

# want <what> <check>:<package>...: as need, but without them it goes on and says what will be missing.
want() {
    local message
    message="$(need "$@" 2>&1)" || say "no $1: ${message##*$'\n'}"
}

have() {
    local value="${1#*=}"
    case "$1" in
        cmd=*) command -v "$value" >/dev/null ;;
        hdr=*) [ -e "/usr/include/$value" ] || echo "#include <$value>" | ${CXX:-c++} -std=c++20 -E -x c++ - >/dev/null 2>&1 ;;
        py=*) python3 -c "import $value" >/dev/null 2>&1 ;;
    esac
}

need_build_tools() {
    need "building" cmd=cmake:cmake cmd=ninja:ninja-build cmd=c++:g++ cmd=python3:python3 cmd=flock:util-linux
    want "ccache; a rebuild would start from nothing" cmd=ccache:ccache
}

# lock <file>: waits for another run that holds the same lock; released when the script ends.
lock() {
    mkdir -p "$(dirname "$1")"
    exec 9>"$1"
    if ! flock -n 9; then
        say "another run holds $1; waiting for it"
        flock 9
    fi
}

# quietly <what> <log file> <command>...: output goes to the log; a line every 20 s tells where it is; on failure the log's end.
quietly() {
    local what="$1" log="$2" rc=0 beat
    shift 2
    mkdir -p "$(dirname "$log")"
    say "$what"
    (
        trap 'kill "$!"; exit 0' TERM
        while sleep 20 & wait "$!"; do
            kill -0 $$ 2>/dev/null || exit 0
            say "  ... $(tail -n 1 "$log" 2>/dev/null | cut -c1-110)"
        done
    ) >/dev/null 9>&- &
    beat=$!
    "$@" >"$log" 2>&1 9>&- || rc=$?
    kill "$beat" 2>/dev/null || true
    wait "$beat" 2>/dev/null || true
    if [ "$rc" != 0 ]; then
        tail -n 40 "$log" >&2
        die "$what failed with exit code $rc; the whole log is $log"
    fi
}

# pip_fetch <requirement file> <folder> <pip option>...: downloads what the file pins, hashes checked, into an empty folder.
pip_fetch() {
    local requirements="$1" dest="$2" name log
    shift 2
    name="$(basename "$requirements" .txt)"
    log="$VECINFER_CACHE/log/pip-$name.log"
    rm -rf "$dest"
    mkdir -p "$dest" "$(dirname "$log")"
    local args=(download --disable-pip-version-check --no-deps --require-hashes "$@" -d "$dest" -r "$requirements")
    if have py=pip && python3 -m pip "${args[@]}" >"$log" 2>&1; then
        return 0
    fi
    # No pip, or one that the distribution locks down: a private one.
    local venv="$VECINFER_CACHE/venv"
    if [ ! -x "$venv/bin/pip" ]; then
        need "downloading $name" py=ensurepip:python3-venv
        quietly "making a private Python environment" "$VECINFER_CACHE/log/venv.log" python3 -m venv --clear "$venv"
    fi
    quietly "downloading $name with $venv/bin/pip" "$log" "$venv/bin/pip" "${args[@]}"
}

sha256_of() { sha256sum "$1" | cut -d' ' -f1; }

# Where llama.cpp is: sets LLAMA_SRC and LLAMA_BUILD, for the user's own tree or the default one.
locate_llama() {
    if [ -n "${VECINFER_LLAMA_CPP:-}" ]; then
        [ -f "$VECINFER_LLAMA_CPP/ggml/src/ggml-backend-impl.h" ] ||
            die "VECINFER_LLAMA_CPP=$VECINFER_LLAMA_CPP is not a llama.cpp source tree (no ggml/src/ggml-backend-impl.h)"
        LLAMA_SRC="$(cd "$VECINFER_LLAMA_CPP" && pwd -P)"
        LLAMA_BUILD="${VECINFER_LLAMA_CPP_BUILD:-$LLAMA_SRC/build}"
    else
        LLAMA_SRC="$VECINFER_CACHE/llama.cpp-$LLAMA_VERSION/src"
        LLAMA_BUILD="$VECINFER_CACHE/llama.cpp-$LLAMA_VERSION/build"
    fi
}

# model_path <name>: where scripts/models keeps it.
model_path() {
    case "$1" in
        smollm2) echo "$VECINFER_CACHE/models/SmolLM2-135M-Instruct.Q4_1.gguf" ;;
        gemma3) echo "$VECINFER_CACHE/models/gemma-3-270m-q4_k_m.gguf" ;;
        *) die "unknown model '$1'; known: smollm2 gemma3" ;;
    esac
}

# in_build <preset> <file name>: the newest regular file of that name in a build folder, or nothing.
in_build() {
    find "$VECINFER_ROOT/build/$1" -name CMakeFiles -prune -o -name "$2" -type f -print 2>/dev/null | head -n 1 || true
}
