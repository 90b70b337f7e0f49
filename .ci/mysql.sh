#!/usr/bin/env bash
# Unpacks MySQL's server into the directory $1, by default where the tests look: Debian's stable releases have MariaDB
# only. The package and its libraries come from sid, with an apt configuration of its own, so that nothing else on this
# machine changes. $1/mysqld then runs the server with the libraries it came with.
set -euo pipefail
to=$(realpath -m "${1:-$HOME/.cache/outbox_tasks/mysql}")
[ -x "$to/mysqld" ] && exit 0
apt=$to.apt
rm -rf "$to" "$apt"
mkdir -p "$to" "$apt"/{lists/partial,cache/archives/partial,etc}
touch "$apt/status"
site=$(apt-get indextargets --format '$(SITE)' | grep -m1 '/debian/\?$')
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site sid main" >"$apt/sources.list"
own=(-q -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts="$apt/etc" -o Dir::Etc::PreferencesParts="$apt/etc"
  -o Dir::State::Lists="$apt/lists" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" -o APT::Sandbox::User=root)
apt-get "${own[@]}" update
# The machine has none of its libraries, as far as this list of what is installed goes: so they all come along.
apt-get "${own[@]}" install -y --download-only --no-install-recommends mysql-server-core
for deb in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$deb" "$to"; done
loader=$(find -L "$to" -path '*/ld-linux*' | head -1)
libraries=$(find "$to" -type d -path '*/lib/*-linux-gnu' | paste -sd:)
printf '#!/bin/sh\nexec %s --library-path %s %s "$@"\n' "$loader" "$libraries" "$to/usr/sbin/mysqld" >"$to/mysqld"
chmod +x "$to/mysqld"
rm -rf "$apt"
"$to/mysqld" --version
