#!/bin/sh
# run.sh <prefix> <work folder> <C compiler> <pkg-config>: builds and runs the C consumer against the installed package.
set -eu
prefix=$1
work=$2
cc=$3
pkg_config=$4
for tool in "$cc" "$pkg_config"; do
    if ! command -v "$tool" >/dev/null; then
        echo "SKIP: $tool is not installed" >&2
        exit 77
    fi
done
mkdir -p "$work"
pc=$(find "$prefix" -name vecinfer.pc)
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
libdir=$("$pkg_config" --variable=libdir vecinfer)
# shellcheck disable=SC2046
"$cc" -std=c99 -Wall -Wextra -Werror -pedantic "$(dirname "$0")/main.c" -o "$work/shared" $("$pkg_config" --cflags --libs vecinfer) -lm
LD_LIBRARY_PATH=$libdir "$work/shared"
# shellcheck disable=SC2046
"$cc" -std=c99 "$(dirname "$0")/main.c" -o "$work/static" $("$pkg_config" --cflags vecinfer) "$libdir/libvecinfer.a" \
    -lstdc++ -lm -pthread
"$work/static"
