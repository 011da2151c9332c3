/* SPDX-License-Identifier: Apache-2.0
 * Parsing of command-line arguments. */
#include "workers/trainer/options.h"

#include "core/base/num.h"
#include "workers/trainer/command.h"

#include <stdio.h>
#include <string.h>

static const struct options_row *find(
	const struct options_row *rows, int count, const char *argument, const char **ret_value)
{
	const char *equals = strchr(argument, '=');
	size_t bytes = equals != NULL ? (size_t)(equals - argument) : strlen(argument);
	*ret_value = equals != NULL ? equals + 1 : NULL;
	for (int i = 0; i < count; i++)
		if (rows[i].name != NULL && strlen(rows[i].name) == bytes &&
			strncmp(rows[i].name, argument, bytes) == 0)
			return &rows[i];
	return NULL;
}

static const struct options_row *nameless(const struct options_row *rows, int count)
{
	for (int i = 0; i < count; i++)
		if (rows[i].name == NULL)
			return &rows[i];
	return NULL;
}

static int take_data(struct session_inputs *in, const char *word, struct err *err)
{
	static const char training[] = "training_file=", validation[] = "validation_file=";
	struct data_file *list;
	int *count;
	if (strncmp(word, training, sizeof(training) - 1) == 0) {
		word += sizeof(training) - 1;
		list = in->training;
		count = &in->training_count;
	} else if (strncmp(word, validation, sizeof(validation) - 1) == 0) {
		word += sizeof(validation) - 1;
		list = in->validation;
		count = &in->validation_count;
	} else {
		return err_set(err, ERR_INVALID_VALUE, "--data",
			"\"%s\" is not training_file=PATH or validation_file=PATH", word);
	}
	if (*count == SPEC_FILES_MAX)
		return err_set(err, ERR_INVALID_VALUE, "--data", "more than %d files", SPEC_FILES_MAX);
	const char *slash = strrchr(word, '/');
	list[*count].path = word;
	list[*count].label = slash != NULL ? slash + 1 : word;
	(*count)++;
	return 0;
}

static int take(const struct options_row *r, const char *value, struct err *err)
{
	int64_t count = 0;
	double number = 0;
	switch (r->kind) {
	case OPTIONS_FLAG: *(bool *)r->into = true; return 0;
	case OPTIONS_TEXT:
	case OPTIONS_OPTIONAL: *(const char **)r->into = value; return 0;
	case OPTIONS_COUNT:
		if (num_parse_i64(value, (int64_t)r->min, (int64_t)r->max, &count) < 0)
			return err_set(err, ERR_INVALID_VALUE, r->name,
				"\"%s\" is not a number from %.0f to %.0f", value, r->min, r->max);
		*(int64_t *)r->into = count;
		return 0;
	case OPTIONS_NUMBER:
		if (num_parse_f64(value, &number) < 0 || !(number >= r->min && number <= r->max))
			return err_set(err, ERR_INVALID_VALUE, r->name, "\"%s\" is not a number from %g to %g",
				value, r->min, r->max);
		*(double *)r->into = number;
		return 0;
	case OPTIONS_DATA: return take_data(r->into, value, err);
	}
	return ERR_INTERNAL;
}

int options_parse(const struct options_row *rows, int count, int argc, char **argv, struct err *err)
{
	bool taken = false;
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
			return OPTIONS_HELP;
	for (int i = 1; i < argc; i++) {
		const char *value = NULL;
		const struct options_row *r = argv[i][0] == '-' ? find(rows, count, argv[i], &value)
														: (taken ? NULL : nameless(rows, count));
		if (r == NULL)
			return err_set(err, ERR_INVALID_VALUE, argv[i], "the argument is not known");
		if (r->name == NULL) {
			taken = true;
			value = argv[i];
		}
		if (value != NULL && r->kind == OPTIONS_FLAG)
			return err_set(err, ERR_INVALID_VALUE, r->name, "takes no value");
		if (value == NULL && r->kind == OPTIONS_OPTIONAL)
			value = "";
		if (value == NULL && r->kind != OPTIONS_FLAG && ++i < argc)
			value = argv[i];
		if (value == NULL && r->kind != OPTIONS_FLAG)
			return err_set(err, ERR_MISSING_FIELD, r->name, "needs a value");
		int rc = take(r, value, err);
		if (rc < 0)
			return rc;
	}
	return 0;
}

static void print_error(const struct err *err)
{
	fprintf(
		stderr, "trainyard-trainer: %s%s%s\n", err->param, err->param[0] ? ": " : "", err->message);
}

int options_print(const struct buf *text, struct err *err)
{
	if (text->failed != 0)
		return err_set(err, text->failed, NULL, "the answer does not fit");
	if (fwrite(text->data, 1, text->len, stdout) != text->len || fflush(stdout) != 0)
		return err_set(err, ERR_IO, NULL, "standard output cannot be written");
	return 0;
}

int options_run(const struct options_row *rows, int count, int argc, char **argv, const char *usage,
	int (*run)(void *ctx, struct err *err), void *ctx)
{
	struct err err = { 0 };
	int rc = options_parse(rows, count, argc, argv, &err);
	if (rc == OPTIONS_HELP) {
		fputs(usage, stdout);
		return COMMAND_OK;
	}
	if (rc < 0) {
		print_error(&err);
		fputs(usage, stderr);
		return COMMAND_USAGE;
	}
	int status = run(ctx, &err);
	if (status >= 0)
		return status;
	print_error(&err);
	bool argument = err.param[0] == '-' || strcmp(err.param, "SPEC.json") == 0;
	return status == ERR_MISSING_FIELD && argument ? COMMAND_USAGE : COMMAND_FAILED;
}
