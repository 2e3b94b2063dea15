#!/bin/sh
# Checks the direction of #include lines: prints a line for each that points back, or that does not name its layer, and fails if there is
# any. A new layer needs a new row.
#
#   tests/tools/check_includes.sh [ROOT]
set -eu
cd "${1:-$(dirname "$0")/../..}"

find src/ -name '*.[ch]' | sort | xargs awk '
function may(layer, list) { rule[layer] = " " layer " " list " " }

BEGIN {
    may("base", "")
    may("io", "base")
    may("model", "base")
    may("store", "model base")
    may("sched", "store model base")
    may("server", "sched store model io base")
    may("agent", "io model base")
    may("cli", "io model base")
    may("main", "server sched store model io agent cli base")
    may("bench", "io model base") # programs of the benchmark, which are clients
}

FNR == 1 {
    files++
    split(FILENAME, part, "/")
    layer = part[2]
    if (!(layer in rule)) {
        printf "%s: no row for the layer %s in check_includes.sh\n", FILENAME, layer
        wrong++
    }
}

layer in rule && match($0, /^[ \t]*#[ \t]*include[ \t]*"[^"]*"/) {
    name = substr($0, RSTART, RLENGTH)
    gsub(/^[^"]*"|"$/, "", name)
    target = name
    sub(/\/.*/, "", target)
    if (target == name)
        printf "%s:%d: write \"%s/%s\", with the layer\n", FILENAME, FNR, layer, name
    else if (index(rule[layer], " " target " "))
        next
    else
        printf "%s:%d: %s must not include %s\n", FILENAME, FNR, layer, name
    wrong++
}

END {
    if (!files) {
        print "no sources found"
        exit 1
    }
    exit wrong > 0
}
'
