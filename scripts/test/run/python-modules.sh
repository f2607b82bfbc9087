# shellcheck shell=bash
# The interpreter's own tests of its modules for files. The output of a test depends on the file
# system (features that it skips), so only verdicts count; failing tests are named.
export TMPDIR=$PWD PYTHONDONTWRITEBYTECODE=1
/usr/bin/python3 -m test --tempdir "$PWD" -j2 --timeout 300 \
    test_os test_posix test_io test_file test_fileio test_bufio test_largefile test_shutil test_tempfile \
    test_mmap test_posixpath test_pathlib test_glob test_fcntl test_dbm_dumb test_shelve test_zipfile \
    test_tarfile test_mailbox test_filecmp >log 2>&1 || true
grep -E '^(FAIL|ERROR):|^Tests result|^All [0-9]+ tests OK' log
rm -rf log tmp* @test* test_python_* build
