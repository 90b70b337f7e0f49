#!/usr/bin/env bash
# sid.sh NAME…: unpacks these servers of Debian's sid where the tests look, each into a directory of its own: its stable
# releases don't have them, or older ones. apt has a configuration of its own, so nothing else on this machine changes. Each
# program runs by the loader and the libraries that it came with, wherever the directory is.
set -euo pipefail
declare -A packages=(
  [mosquitto]='mosquitto'
  [mysql]='mysql-server-core'
  [nats]='nats-server'
  [pgbouncer]='pgbouncer'
  [postgresql19]='postgresql-19/experimental postgresql-client-19/experimental libpq5/experimental locales/sid'
  [rabbitmq]='rabbitmq-server'
)
home=$HOME/.cache/outbox_tasks/servers
names=()
for name in "$@"; do [ -e "$home/$name/ready" ] || names+=("$name"); done
[ ${#names[@]} = 0 ] && exit
mkdir -p "$home"
apt=$(mktemp -d "$home/apt.XXXXXX")
trap 'rm -rf "$apt"' EXIT
mkdir -p "$apt"/{lists/partial,cache/archives/partial,etc}
touch "$apt/status"
site=$(apt-get indextargets --format '$(SITE)' | grep -m1 '/debian/\?$')
for suite in sid experimental; do # of this one only what is asked for
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site $suite main"
done >"$apt/sources.list"
own=(-q -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts="$apt/etc" -o Dir::Etc::PreferencesParts="$apt/etc"
  -o Dir::State::Lists="$apt/lists" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" -o APT::Sandbox::User=root)
apt-get "${own[@]}" update
for name in "${names[@]}"; do
  to=$home/$name
  rm -rf "$to"
  mkdir "$to"
  # The machine has none of its libraries, as far as this list of what is installed goes: so they all come along.
  apt-get "${own[@]}" install -y --download-only --no-install-recommends ${packages[$name]}
  for deb in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$deb" "$to"; done
  rm -rf "$to"/{,usr/}{bin,sbin} # of what came along; its own follow
  for package in ${packages[$name]}; do dpkg-deb -x "$apt/cache/archives/${package%/*}"_*.deb "$to"; done
  rm "$apt"/cache/archives/*.deb
  loader=$(find -L "$to" -path '*/ld-linux*' -printf '%P\n' -quit)
  libraries=$(find "$to/usr/lib" -maxdepth 1 -type d -name '*-linux-gnu' -printf '$root/usr/lib/%P')
  ldconfig -n "$to/usr/lib"/*-linux-gnu # the links that a package leaves to its installation
  find "$to/usr" -type f -perm /111 -path '*bin/*' | while read -r program; do
    [ "$(head -c 4 "$program" | tail -c 3 | tr -d '\0')" = ELF ] || continue
    mv "$program" "$program.elf"
    root=$(realpath --relative-to="$(dirname "$program")" "$to")
    printf '#!/bin/sh\nhere=$(dirname "$(realpath "$0")") root=$here/%s\nexec "$root/%s" --library-path "%s" "$here/%s" "$@"\n' \
      "$root" "$loader" "$libraries" "${program##*/}.elf" >"$program"
    chmod +x "$program"
  done
  erlang=$to/usr/lib/erlang
  [ ! -e "$erlang" ] || sed -i "s|ROOTDIR=/usr/lib/erlang|ROOTDIR=$erlang|" "$erlang"/bin/erl "$erlang"/erts-*/bin/erl
  touch "$to/ready"
done
