/* SPDX-License-Identifier: Apache-2.0
 * trainyard-trainer plan SPEC.json: what a job needs, without data and without a device. */
#include "workers/trainer/command.h"

#include "workers/plan/plan_job.h"
#include "workers/plan/plan_table.h"
#include "workers/trainer/message.h"
#include "workers/trainer/options.h"
#include "workers/trainer/spec_file.h"

#include <stdio.h>

enum { PLAN_TEXT_MAX = 256 * 1024 };

static const char usage[] =
	"usage: trainyard-trainer plan SPEC.json [--json | --parameters] [--init DIR]\n"
	"\n"
	"Compiles a job spec and prints what it needs: memory by kind, parameters, FLOPs per token "
	"with\n"
	"the convention that counts them, the longest operations. No data and no device are needed.\n"
	"\n"
	"  --json        the figures as one JSON object, as in the \"training\" message\n"
	"  --parameters  the tensors instead, as they are named in files: name, role, type, shape\n"
	"  --init DIR    the files that a spec with model.base starts from\n";

struct plan_command {
	const char *spec_path, *init_dir;
	bool json, parameters;
};

static void write_parameters(const struct plan *p, struct buf *out)
{
	for (int i = 0; i < p->param_count; i++) {
		const struct plan_param *t = &p->params[i];
		buf_printf(out, "%s %s %s [", t->name, plan_role_word(t->role),
			plan_type_word(plan_param_kept(p, t)));
		for (int d = 0; d < t->rank; d++)
			buf_printf(out, "%s%lld", d > 0 ? "," : "", (long long)t->shape[d]);
		buf_str(out, "]\n");
	}
}

static int run(void *ctx, struct err *err)
{
	struct plan_command *c = ctx;
	struct job_spec spec;
	struct plan_job job = { 0 };
	cleanup(plan_destroyp) struct plan *plan = NULL;
	cleanup(buf_finish) struct buf text;
	buf_init(&text, PLAN_TEXT_MAX);
	if (c->spec_path == NULL)
		return err_set(err, ERR_MISSING_FIELD, "SPEC.json", "a spec is needed: plan SPEC.json");
	char why[SPEC_FILE_WHY_MAX];
	int rc = spec_file_read_why(c->spec_path, c->init_dir, &spec, why, err);
	if (rc == 0 && c->parameters) { /* the whole model's, of which a rank may have a part */
		spec.device_count = 1;
		spec.parallel = (struct spec_parallel){ .data = 1, .tensor = 1, .pipeline = 1 };
	}
	if (rc == 0)
		rc = plan_compile(&spec, NULL, &plan, err);
	if (rc == 0)
		rc = plan_job_of(plan, &spec, &job, err);
	if (rc < 0)
		return rc;
	if (c->parameters) {
		write_parameters(plan, &text);
	} else if (c->json) {
		message_plan(plan, &job, &text);
		buf_char(&text, '\n');
	} else {
		if (why[0])
			buf_printf(&text, "Parallelism auto: %s\n\n", why);
		rc = plan_table_write(plan, &text, err);
	}
	if (rc == 0)
		rc = options_print(&text, err);
	return rc < 0 ? rc : COMMAND_OK;
}

int cmd_plan(int argc, char **argv)
{
	struct plan_command c = { 0 };
	const struct options_row rows[] = {
		{ NULL, OPTIONS_TEXT, &c.spec_path, 0, 0 },
		{ "--json", OPTIONS_FLAG, &c.json, 0, 0 },
		{ "--parameters", OPTIONS_FLAG, &c.parameters, 0, 0 },
		{ "--init", OPTIONS_TEXT, &c.init_dir, 0, 0 },
	};
	return options_run(rows, ARRAY_LEN(rows), argc, argv, usage, run, &c);
}
