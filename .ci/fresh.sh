#!/usr/bin/env bash
# What somebody does who has just got this machine: a clone, the system's own Python, no variables, and no rights. A root
# runs it as nobody.
set -euo pipefail
cd "$(dirname "$0")/.."
python=/usr/bin/python3
"$python" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
  echo "$python is not there, is older than 3.11, or has no venv: nothing was tried"
  exit 0
}
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
git -c safe.directory='*' clone --quiet . "$home/clone"
ordinary=()
if [ "$(id -u)" = 0 ]; then
  chown -R nobody "$home"
  ordinary=(setpriv --reuid=nobody --regid="$(id -g nobody)" --clear-groups)
fi
for target in "${@:-demo}"; do
  "${ordinary[@]}" env -i HOME="$home" PATH=/usr/bin:/bin make --no-print-directory -C "$home/clone" PYTHON="$python" "$target"
done
