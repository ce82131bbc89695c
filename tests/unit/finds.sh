#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# finds.sh PROGRAM PATTERN: a line that the program prints matches the pattern. The program is ended then: its fault may have left
# threads that wait for ever.
sh -c 'echo $$; exec timeout 10 "$1" 2>&1' sh "$1" | {
    read -r pid
    found=0
    grep -m 1 -E "$2" || found=$?
    kill "$pid" 2>/dev/null
    exit "$found"
}
