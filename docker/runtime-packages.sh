#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints the Debian packages that own the shared libraries of the given programs, sorted: what an
# image needs to run them, derived from what they were linked with.
set -eu

ldd "$@" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u | while read -r library; do
	# With merged /usr a library is asked for under the path that its package recorded.
	dpkg-query -S "$(readlink -f "$library")" 2>/dev/null ||
		dpkg-query -S "$(readlink -f "$library" | sed 's#^/usr##')"
done | cut -d: -f1 | sort -u
