/* SPDX-License-Identifier: Apache-2.0
 * Finds NVML when the agent starts. Called on the main thread before there are others. */
#include "workers/agent/nvml.h"

#include <dlfcn.h>

static int unavailable(struct err *err, const char *why)
{
	return err_set(err, ERR_UNAVAILABLE, NULL,
		"NVML, which finds GPUs, cannot be used: %.300s (it comes with the NVIDIA driver; "
		"nvml_library names another file)",
		why != NULL ? why : "unknown");
}

/* dlerror's texts name the library; it stays loaded when a function is missing. */
static int find(const char *library, struct nvml *ret, struct err *err)
{
	struct nvml l;
	void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (handle == NULL)
		return unavailable(err, dlerror());
#define X(member, name, arguments)               \
	*(void **)(&l.member) = dlsym(handle, name); \
	if (l.member == NULL)                        \
		return unavailable(err, dlerror());
	NVML_LIST(X)
#undef X
	*(void **)(&l.text) = dlsym(handle, "nvmlErrorString");
	if (l.text == NULL)
		return unavailable(err, dlerror());
	*ret = l;
	return 0;
}

int nvml_load(const char *library, const struct nvml **ret, struct err *err)
{
	static struct nvml loaded;
	int rc = find(library, &loaded, err);
	if (rc < 0)
		return rc;
	int status = loaded.init();
	if (status != NVML_SUCCESS)
		return unavailable(err, loaded.text(status));
	*ret = &loaded;
	return 0;
}
