#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The inputs of a fuzz target lie in one archive, tests/fuzz/corpus/NAME.tar.gz:
#     tests/fuzz/corpus.sh unpack NAME FOLDER    what the build does, into an empty FOLDER
#     tests/fuzz/corpus.sh pack NAME FOLDER      all files of FOLDER become the archive
#     tests/fuzz/corpus.sh add NAME FILE...      adds inputs; a file's name says what the input is
# The same files give the same archive, byte for byte.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
die() { echo "corpus.sh: $*" >&2; exit 2; }
[ $# -ge 3 ] || die "usage: corpus.sh unpack|pack NAME FOLDER, or add NAME FILE..."
command=$1 archive=$here/corpus/$2.tar.gz
shift 2

pack() {
  [ -n "$(ls "$1")" ] || die "$1 has no files"
  (cd "$1" && LC_ALL=C ls | tar --format=ustar --mtime=@0 --mode=0644 --owner=0 --group=0 --numeric-owner -cf - -T -) | gzip -9n >"$archive.new"
  mv "$archive.new" "$archive"
}
unpack() {
  rm -rf "$1"
  mkdir -p "$1"
  tar -xzf "$archive" -C "$1" --no-same-owner
}

case $command in
unpack) unpack "$1" ;;
pack) pack "$1" ;;
add)
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  unpack "$folder"
  cp -t "$folder" "$@"
  pack "$folder"
  ;;
*) die "no command '$command'" ;;
esac
