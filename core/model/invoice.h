/* SPDX-License-Identifier: Apache-2.0
 * An invoice in memory: its canonical content, its check sum, and the comparison of what is stored
 * with what the segments say. Pure; invoice_store.c fills it. One thread at a time. */
#pragma once

#include "core/base/attr.h"
#include "core/base/buf.h"
#include "core/base/err.h"
#include "core/base/ident.h"
#include "core/crypto/digest.h"

#include <stddef.h>
#include <stdint.h>

enum {
	INVOICE_LINES_MAX = 20000,
	INVOICE_CONTENT_MAX = 16 * 1024 * 1024,
	INVOICE_STATUS_MAX = 16,
	INVOICE_TYPE_MAX = 64,
	INVOICE_PRICE_MAX = 64,
	INVOICE_FORMAT = 1, /* of the content; raised when its members change */
};

struct invoice_line {
	int line;
	char job_id[IDENT_MAX];
	char instance_type[INVOICE_TYPE_MAX];
	char price_id[INVOICE_PRICE_MAX];
	char *description; /* owned */
	int64_t micros_per_hour;
	int64_t quantity_ms;
	int64_t amount_minor;
	/* Computed from the segments, never stored. */
	int64_t segment_count;
	int64_t segments_ms;
	int64_t foreign_segments; /* of another job, price, tenant, or not billed */
	int64_t usage_start_us;
	int64_t usage_end_us;
	char segments_sha256[DIGEST_HEX_MAX];
};

struct invoice {
	char id[IDENT_MAX];
	char tenant_id[IDENT_MAX];
	char status[INVOICE_STATUS_MAX];
	char currency[4];
	int64_t from_us, to_us;
	int64_t total_minor;
	int64_t finalized_us; /* 0 while a draft */
	char *content;        /* owned; NULL while a draft */
	char content_sha256[DIGEST_HEX_MAX];
	struct invoice_line *lines; /* owned */
	size_t line_count;
};

void invoice_finish(struct invoice *invoice);

/* "mnist: training on cpu-dev at 0.36 USD per device-hour". The job's id stands in for no name. */
char *invoice_describe(const char *job_name, const char *job_id, const char *instance_type,
	int64_t micros_per_hour, const char *currency) must_check;

/* The canonical text (malloc'ed) and its SHA-256: keys in order of bytes, no white space, whole
 * numbers and strings only. NO_MEMORY, TOO_LARGE. */
int invoice_content(const struct invoice *invoice, char **ret_text,
	char ret_sha256[static DIGEST_HEX_MAX]) must_check;

/* Compares everything that is stored with what the segments and the rate say. Each difference is a
 * line of text in problems; the number of them is returned through ret_count. A void invoice has
 * given its segments back: only its check sum is compared. */
int invoice_check(const struct invoice *invoice, struct buf *problems, int *ret_count) must_check;
