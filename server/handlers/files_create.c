/* SPDX-License-Identifier: Apache-2.0
 * POST /v1/files: a form's file part, on disk and hashed already, becomes a file of the tenant.
 * Runs on a worker thread. */
#include "server/handlers/handlers.h"

#include "core/base/ident.h"
#include "core/model/content.h"
#include "core/model/file_store.h"
#include "core/model/residency.h"
#include "core/model/tenant_store.h"
#include "server/http/multipart.h"
#include "server/limits/args.h"
#include "server/limits/idempotency.h"
#include "server/settings.h"
#include "server/storage/blob.h"

#include <stdio.h>
#include <string.h>

struct creation {
	struct request *req;
	struct response *res;
	const char *content; /* what makes two uploads the same, for Idempotency-Key */
	struct residency_set asked;
	struct file file;
	bool published; /* by an earlier try of the transaction */
	bool refused;
};

static int check_purpose(const char *purpose, struct err *err)
{
	if (!purpose || !purpose[0])
		return err_set(err, ERR_MISSING_FIELD, "purpose",
			"The form needs a field `purpose`, such as fine-tune");
	size_t n = strspn(purpose, "abcdefghijklmnopqrstuvwxyz0123456789_-");
	if (purpose[n] != '\0' || n > FILE_PURPOSE_MAX)
		return err_set(err, ERR_INVALID_VALUE, "purpose",
			"purpose must be 1 to %d lower-case letters, digits, dashes or underscores",
			FILE_PURPOSE_MAX);
	return 0;
}

static int check_fields(const struct upload *u, struct err *err)
{
	for (int i = 0; i < u->field_count; i++) {
		const char *name = u->fields[i].name;
		if (strcmp(name, "purpose") != 0 && strcmp(name, "residency") != 0)
			return err_set(err, ERR_UNKNOWN_FIELD,
				args_check_text(name, "form", UPLOAD_FIELD_NAME_MAX, NULL) == 0 ? name : "form",
				"The form has a field that is not known; known are file, purpose and "
				"residency");
		for (int j = 0; j < i; j++)
			if (strcmp(name, u->fields[j].name) == 0)
				return err_set(
					err, ERR_INVALID_VALUE, name, "The form has the field %s twice", name);
	}
	return 0;
}

static int read_form(struct creation *c, struct err *err)
{
	const struct upload *u = c->req->upload;
	if (!u || !u->has_file)
		return err_set(err, ERR_MISSING_FIELD, "file", "The form needs a part `file`");
	if (strcmp(u->file_field, "file") != 0)
		return err_set(err, ERR_UNKNOWN_FIELD, "file",
			"The file must be in the part `file`, not in another one");
	if (u->bytes == 0)
		return err_set(err, ERR_INVALID_DATA, "file", "The file %s is empty: it ends at offset 0",
			u->filename);
	int rc = check_fields(u, err);
	const char *purpose = upload_field(u, "purpose");
	if (rc == 0)
		rc = check_purpose(purpose, err);
	if (rc == 0)
		rc = args_check_text(u->filename, "filename", FILE_NAME_MAX - 1, err);
	const char *residency = upload_field(u, "residency");
	if (rc == 0 && residency)
		rc = args_regions(residency, "residency", &c->asked, err);
	if (rc < 0)
		return rc;
	struct file *f = &c->file;
	snprintf(f->filename, sizeof(f->filename), "%s", u->filename[0] ? u->filename : "file");
	snprintf(f->purpose, sizeof(f->purpose), "%s", purpose);
	snprintf(f->sha256, sizeof(f->sha256), "%s", u->sha256);
	f->bytes = u->bytes;
	f->processed = true;
	c->content = arena_printf(&c->req->arena, "%s\n%s\n%s\n%s", u->sha256, f->filename, purpose,
		residency ? residency : "");
	if (!c->content)
		return err_set(err, ERR_NO_MEMORY, NULL, "No memory for the upload");
	return 0;
}

/* Where the file may be, and whether this server's store is such a place. */
static int decide(struct creation *c, struct db_conn *conn, struct err *err)
{
	struct residency_set tenants;
	int rc = tenant_store_residency(conn, c->req->principal.tenant_id, &tenants, err);
	if (rc == 0)
		rc = residency_tighten(&tenants, &c->asked, &c->file.residency, err);
	if (rc < 0) {
		if (rc == ERR_RESIDENCY)
			snprintf(err->param, sizeof(err->param), "residency");
		return rc;
	}
	bool allowed = false;
	rc = residency_decide(conn,
		&(struct residency_question){ .ask = RESIDENCY_UPLOAD,
			.tenant_id = c->req->principal.tenant_id,
			.subject = c->file.id,
			.allowed_set = &c->file.residency,
			.place = c->req->app->settings->region },
		&allowed, err);
	if (rc == 0)
		c->refused = !allowed; /* the decision's row stays: the transaction goes on */
	return rc;
}

/* Moves the content into place, under its lock. When the transaction is tried again, the content is
 * there already, unless somebody deleted an equal file in between. */
static int publish(struct creation *c, struct err *err)
{
	const char *tenant = c->req->principal.tenant_id;
	if (!c->published) {
		int rc = blob_store_publish(
			c->req->app->blobs, c->req->upload->temp_path, tenant, c->file.sha256, err);
		c->published = rc == 0;
		return rc;
	}
	cleanup(closep) int fd = -1;
	int64_t bytes = 0;
	int rc = blob_store_open(c->req->app->blobs, tenant, c->file.sha256, &fd, &bytes, err);
	if (rc == ERR_NOT_FOUND)
		return err_set(
			err, ERR_UNAVAILABLE, NULL, "The same content was deleted meanwhile; upload it again");
	return rc;
}

static int create_in_tx(struct db_conn *conn, void *ctx, struct err *err)
{
	struct creation *c = ctx;
	const char *tenant = c->req->principal.tenant_id;
	struct idempotency idem;
	bool replayed = false;
	int rc = idempotency_begin(c->req, conn, c->content, &idem, c->res, &replayed, err);
	if (rc < 0 || replayed)
		return rc;
	rc = decide(c, conn, err);
	if (rc < 0 || c->refused)
		return rc;
	rc = content_lock(conn, tenant, c->file.sha256, err);
	if (rc == 0)
		rc = publish(c, err);
	if (rc == 0)
		rc = file_store_insert(conn, tenant, &c->file, err);
	if (rc == 0)
		rc = file_store_write(conn, tenant, c->file.id, &c->res->json, err);
	if (rc == 0)
		rc = idempotency_finish(&idem, conn, c->res, NULL, err);
	return rc;
}

int files_create(struct request *req, struct response *res, struct err *err)
{
	struct creation c = { .req = req, .res = res };
	int rc = read_form(&c, err);
	if (rc == 0)
		rc = blob_store_sync(req->upload->temp_path, err);
	if (rc < 0)
		return rc;
	ident_new(req->app->clock, "file", c.file.id);
	rc = db_tx(req->app->pool, APP_DB_WAIT_MS, create_in_tx, &c, err);
	if (rc < 0)
		return rc;
	return c.refused ? ERR_RESIDENCY : 0;
}
