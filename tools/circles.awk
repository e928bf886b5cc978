# Modules that include each other: awk -f tools/circles.awk FILE...
#
# A module is x.c with x.h; an x_part.h with its x_part.c beside an x.h is a part of it. When A's files include
# B's header, A depends on B; where B leads back to A the include is printed.
function stem(path) {
    sub(/\.[a-z]+$/, "", path)
    return path
}
function module(path, m, dir, base, at) {
    m = stem(path)
    if (!(m in header))
        return m
    dir = m
    sub(/[^\/]*$/, "", dir)
    base = substr(m, length(dir) + 1)
    for (at = index(base, "_"); at; at = index_from(base, "_", at + 1))
        if ((dir substr(base, 1, at - 1)) in header)
            return dir substr(base, 1, at - 1)
    return m
}
function index_from(s, c, from, at) {
    at = index(substr(s, from), c)
    return at ? at + from - 1 : 0
}
# Whether the includes in `edge` lead from one module to the other.
function leads(edge, from, to, seen, todo, n, at, e, p) {
    todo[n = 1] = from
    seen[from] = 1
    for (at = 1; at <= n; at++)
        for (e in edge) {
            split(e, p, " ")
            if (p[1] == todo[at] && p[2] == to)
                return 1
            if (p[1] == todo[at] && !(p[2] in seen)) {
                seen[p[2]] = 1
                todo[++n] = p[2]
            }
        }
    return 0
}
# Takes away what is in no circle and not between two.
function trim(edge, e, p, gone, down, up) {
    do {
        gone = 0
        split("", down)
        split("", up)
        for (e in edge) {
            split(e, p, " ")
            down[p[1]] = up[p[2]] = 1
        }
        for (e in edge) {
            split(e, p, " ")
            if (!(p[1] in up) || !(p[2] in down)) {
                delete edge[e]
                gone = 1
            }
        }
    } while (gone)
}
BEGIN {
    for (i = 1; i < ARGC; i++)
        if (ARGV[i] ~ /\.c?uh$|\.h$/)
            header[stem(ARGV[i])] = 1
}
/^#include "/ {
    split($0, part, "\"")
    from = module(FILENAME)
    to = module(part[2])
    if (from != to)
        edge[from " " to] = FILENAME
}
END {
    trim(edge)
    for (e in edge) {
        split(e, p, " ")
        if (leads(edge, p[2], p[1])) {
            print edge[e] ": includes " p[2] ".h in a circle"
            bad = 1
        }
    }
    exit bad
}
