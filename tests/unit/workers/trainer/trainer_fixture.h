/* SPDX-License-Identifier: Apache-2.0
 * What the trainer's tests share: a temporary folder and a small training in it. */
#pragma once

#include "tests/support/check.h"

#include "core/base/file.h"
#include "core/json/reader.h"
#include "core/spec/spec_json.h"
#include "workers/trainer/session.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FIXTURE_FN static __attribute__((unused))

struct fixture {
	char dir[64];
	char data[96];
	struct job_spec spec;
	struct session_inputs inputs;
};

FIXTURE_FN void fixture_write(const char *path, const void *bytes, size_t count)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, bytes, count), count);
	close(fd);
}

static const char fixture_spec[] =
	"{\"task\":\"language_model\",\"model\":{\"config\":{\"family\":\"gpt2\",\"n_layer\":1,"
	"\"n_head\":2,\"n_embd\":16,\"n_positions\":16,\"vocab_size\":256}},"
	"\"training_file\":\"file_01J0000000000000000000000A\","
	"\"data\":{\"format\":\"text\",\"tokenizer\":\"bytes\",\"sequence_length\":16},"
	"\"hyperparameters\":{\"max_steps\":12,\"batch_size\":4,\"learning_rate\":0.01,"
	"\"warmup_steps\":2,\"dropout\":0.1},"
	"\"resources\":{\"instance_type\":\"cpu-dev\",\"count\":1},"
	"\"checkpoint\":{\"every_steps\":4,\"keep\":2},\"evaluation\":{\"every_steps\":6},\"seed\":11}";

/* 0 for cmocka's setup functions. */
FIXTURE_FN int fixture_setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct err err = { 0 };
	cleanup(json_doc_freep) struct json_doc *doc = NULL;
	const struct json_val *metadata = NULL;
	char text[4096];
	snprintf(f->dir, sizeof(f->dir), "/tmp/trainer_test_XXXXXX");
	assert_non_null(mkdtemp(f->dir));
	snprintf(f->data, sizeof(f->data), "%s/data.txt", f->dir);
	for (size_t i = 0; i < sizeof(text); i++)
		text[i] = (char)('a' + (i * i / 7 + i) % 23);
	fixture_write(f->data, text, sizeof(text));
	assert_int_equal(
		json_doc_parse(fixture_spec, sizeof(fixture_spec) - 1, JSON_BYTES_MAX, &doc, &err), 0);
	if (spec_json_read(json_doc_root(doc), &f->spec, &metadata, &err) < 0)
		fail_msg("%s: %s", err.param, err.message);
	f->inputs.training[0] = (struct data_file){ .path = f->data, .label = "data.txt" };
	f->inputs.validation[0] = f->inputs.training[0];
	f->inputs.training_count = f->inputs.validation_count = 1;
	f->inputs.threads = 1;
	*state = f;
	return 0;
}

FIXTURE_FN int fixture_teardown(void **state)
{
	struct fixture *f = *state;
	struct err err = { 0 };
	int rc = file_remove_tree(f->dir, &err);
	free(f);
	return rc;
}

/* "<dir>/<name>"; the text lives until the 64th next call. */
FIXTURE_FN const char *fixture_path(const struct fixture *f, const char *name)
{
	static char paths[64][160];
	static int next;
	char *path = paths[next++ % 64];
	snprintf(path, sizeof(paths[0]), "%s/%s", f->dir, name);
	return path;
}
