#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What tests/cuda runs where nothing of it was built.
echo "skipped: built without the CUDA toolkit or libboost-context-dev (-Dcuda)"
exit 77
