#!/usr/bin/env bash
# Usage: run.sh MINUTES [OPTION OF RUN...]
#
# In the folder that `scripts/results bundle` filled, on a machine without a build tree: keeps what has arrived so far in WORK, puts
# models together once all their pieces are there, measures on the models that are complete, and leaves the results in OUT. The
# folder may arrive in parts, one after the other. Rows with results in `known` are not measured again.
#
# Environment:
#   WORK   programs, models and results of all calls (default: /tmp/vecinfer-results)
#   OUT    where jobs.tgz and its log go (default: WORK)
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd -P)"
work="${WORK:-/tmp/vecinfer-results}"
out="${OUT:-$work}"
minutes="$1"
shift

mkdir -p "$work/pieces" "$work/models" "$work/state/jobs"
for part in bin lib texts known; do
    if [ -d "$here/$part" ]; then
        rm -rf "${work:?}/$part"
        cp -r "$here/$part" "$work/$part"
    fi
done
if [ -d "$here/models" ]; then
    find "$here/models" -type f -exec mv -t "$work/pieces" {} +
fi
# A piece is named <model>.gguf.<index>of<count>.
for first in "$work"/pieces/*.gguf.0of*; do
    [ -e "$first" ] || continue
    name="$(basename "${first%.0of*}")"
    count="${first##*of}"
    pieces=()
    for ((i = 0; i < count; i++)); do
        [ -e "$work/pieces/$name.${i}of$count" ] && pieces+=("$work/pieces/$name.${i}of$count")
    done
    [ "${#pieces[@]}" = "$count" ] || continue
    cat "${pieces[@]}" >"$work/models/$name"
    rm "${pieces[@]}"
done
ls -l "$work/models" "$work/pieces"
[ "$minutes" != 0 ] || exit 0

options=()
[ ! -d "$work/known" ] || options+=(--known "$work/known")
rc=0
python3 -B "$work/lib" run --present --bin "$work/bin" --models "$work/models" --texts "$work/texts" --out "$work/state" \
    --minutes "$minutes" "${options[@]}" "$@" 2>&1 | tee "$out/run.log" || rc=$?
tar -C "$work/state" -czf "$out/jobs.tgz" jobs
exit "$rc"
