#!/bin/sh
# An environment of Python in FOLDER with packages.   tools/venv.sh FOLDER (-r REQUIREMENTS | PACKAGE)...
#
# uv installs them, which takes a tenth of pip's time; pip gets uv, once, for all of them (build/uv). Where uv cannot
# be had or does not reach the archive that pip is told of, pip installs them.
set -eu
folder=$1
shift
python=$(command -v python3)
tools=$(dirname "$folder")/uv

# told KEY: what pip is told of it, by variables before files; nothing where it is not told. Several are words.
told() { echo "$config" | sed -n "s/^[a-z:]*\.$1='\(.*\)'\$/\1/p" | head -1 | sed 's/\\n/ /g; s/^ *//'; }

by_uv() {
    (
        flock 9
        [ -x "$tools/bin/uv" ] || {
            rm -rf "$tools"
            $python -m venv "$tools" && "$tools/bin/pip" install -q --disable-pip-version-check --no-compile --only-binary :all: uv==0.13.9
        }
    ) 9>"$tools.lock" >/dev/null 2>&1 || return 1
    config=$("$tools/bin/pip" --disable-pip-version-check config list 2>/dev/null) || return 1
    [ -z "$(told no-index)$(told constraint)" ] || return 1 # not known to uv
    index=$(told index-url) more=$(told extra-index-url) links=$(told find-links | tr ' ' ,) cert=$(told cert)
    [ -z "$index" ] || export UV_DEFAULT_INDEX="$index"
    [ -z "$more" ] || export UV_INDEX="$more"
    [ -z "$links" ] || export UV_FIND_LINKS="$links"
    [ -z "$cert" ] || export SSL_CERT_FILE="$cert"
    export UV_PYTHON_DOWNLOADS=never UV_NO_CONFIG=1
    "$tools/bin/uv" venv -q --no-project --python "$python" "$folder" && "$tools/bin/uv" pip install -q --python "$folder/bin/python" "$@"
}

rm -rf "$folder"
mkdir -p "$(dirname "$folder")"
by_uv "$@" 2>/dev/null || {
    rm -rf "$folder"
    $python -m venv "$folder"
    "$folder/bin/pip" install -q --disable-pip-version-check --no-compile "$@"
}
