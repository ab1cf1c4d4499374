#!/usr/bin/env bash
# Runs a command, and again after 10 s if it fails: many versions of pip give up if a connection
# drops during a download.
#
#   tools/retry.sh COMMAND ...
"$@" || { sleep 10 && "$@"; }
