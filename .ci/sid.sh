# Unpacks the package $1 of Debian's sid into the directory $2, with an apt configuration of its own, so that nothing else on
# this machine changes. Each of its programs then runs by the loader and the libraries that it came with. To be sourced.
unpack() {
  to=$(realpath -m "$2") apt=$to.apt
  rm -rf "$to" "$apt"
  mkdir -p "$to" "$apt"/{lists/partial,cache/archives/partial,etc}
  touch "$apt/status"
  site=$(apt-get indextargets --format '$(SITE)' | grep -m1 '/debian/\?$')
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $site sid main" >"$apt/sources.list"
  own=(-q -o Dir::Etc::SourceList="$apt/sources.list" -o Dir::Etc::SourceParts="$apt/etc" -o Dir::Etc::PreferencesParts="$apt/etc"
    -o Dir::State::Lists="$apt/lists" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache" -o APT::Sandbox::User=root)
  apt-get "${own[@]}" update
  # The machine has none of its libraries, as far as this list of what is installed goes: so they all come along.
  apt-get "${own[@]}" install -y --download-only --no-install-recommends "$1"
  for deb in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$deb" "$to"; done
  rm -rf "$apt"
  loader=$(find -L "$to" -path '*/ld-linux*' | head -1)
  libraries=$(find "$to" -type d -path '*/lib/*-linux-gnu' | paste -sd:)
  find "$to/usr" -type f -perm /111 \( -path '*/usr/sbin/*' -o -path '*/erlang/*bin/*' \) | while read -r program; do
    [ "$(head -c 4 "$program" | tail -c 3 | tr -d '\0')" = ELF ] || continue
    mv "$program" "$program.elf"
    printf '#!/bin/sh\nexec %s --library-path %s %s "$@"\n' "$loader" "$libraries" "$program.elf" >"$program"
    chmod +x "$program"
  done
}
