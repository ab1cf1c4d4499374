#!/usr/bin/env bash
# Runs a command, once more after 10 s if it fails: many versions of pip give up when a connection
# drops halfway.
#
#   tools/retry.sh COMMAND ...
"$@" || { sleep 10 && "$@"; }
