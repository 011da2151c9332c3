/* SPDX-License-Identifier: Apache-2.0
 * adapter_config.json of PEFT: what LoRA's matrices are scaled by and belong to. Pure but for
 * reading the file. */
#pragma once

#include "core/base/attr.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/spec/spec.h"

enum { HF_ADAPTER_RANK_MAX = 1024 };

/* Rank, scale and modules of <dir>/adapter_config.json; INVALID_DATA as below. */
int hf_adapter_read(const char *dir, struct spec_lora *ret, struct err *err) must_check;
void hf_adapter_write(const struct job_spec *spec, struct buf *out);
/* INVALID_DATA when <dir>/adapter_config.json is missing, of another kind, or has another rank,
 * scale or set of modules than the spec: its matrices would mean something else. */
int hf_adapter_agree(const char *dir, const struct spec_lora *lora, struct err *err) must_check;
