#!/bin/sh
# RPM packages from a source archive.   tools/package-rpm.sh ARCHIVE FOLDER [RPMBUILD OPTIONS]
# Where rpm knows no systemd macros (Debian), the spec's own paths are used and that requirement is
# left out.
set -eu
archive=$(readlink -f "$1")
mkdir -p "$2"
out=$(readlink -f "$2")
shift 2
command -v rpmbuild >/dev/null || { echo "rpmbuild is missing: apt-get install rpm" >&2; exit 1; }
rm -rf "$out"
mkdir -p "$out/SOURCES"
cp "$archive" "$out/SOURCES/"
version=${archive##*/evenkeel-}
version=${version%.tar.gz}
tar -xzf "$archive" -C "$out" --strip-components=3 "evenkeel-$version/packaging/rpm/evenkeel.spec"
grep -q "^Version: *$version\$" "$out/evenkeel.spec" || { echo "evenkeel.spec is not of version $version" >&2; exit 1; }
set -- --define "_topdir $out" "$@"
[ "$(rpm --eval '%{?_unitdir}')" ] || { # not a system that is built from RPMs
    sed -i '/^BuildRequires/d' "$out/evenkeel.spec"
    set -- "$@" --define '_sysconfdir /etc' --define '_sharedstatedir /var/lib' --define 'dist %nil' \
        --define '__os_install_post %{_rpmconfigdir}/brp-compress; %{__strip} %{buildroot}%{_bindir}/* %{buildroot}%{_sbindir}/* $(find %{buildroot}%{_prefix}/lib %{buildroot}%{_libexecdir}/evenkeel -name "*.so" -o -name evenkeel-nvml)'
}
unset MAKEFLAGS MFLAGS MAKELEVEL # of a make outside
rpmbuild -bb "$@" "$out/evenkeel.spec" >"$out/build.log" 2>&1 ||
    { tail -30 "$out/build.log" >&2; echo "the whole log is $out/build.log" >&2; exit 1; }
rm -rf "$out/BUILD" "$out/BUILDROOT" "$out/SOURCES"
find "$out/RPMS" -name '*.rpm' | sort | while read -r p; do
    printf '  %6d KiB  %s\n' $(($(stat -c %s "$p") / 1024)) "${p##*/}"
done
