/* SPDX-License-Identifier: Apache-2.0
 * Tests core/base/attr.c and the helpers of attr.h. */
#include "core/base/attr.h"
#include "tests/support/check.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

static void take_ptr_leaves_null(void **state)
{
	cleanup(freep) char *owned = strdup("x");
	char *mine = take_ptr(owned);
	assert_null(owned);
	assert_string_equal(mine, "x");
	freep(&mine);
	assert_null(mine);
}

static void closep_closes_and_keeps_errno(void **state)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	int copy = fd;
	errno = EPERM;
	closep(&fd);
	assert_int_equal(errno, EPERM);
	assert_int_equal(fd, -1);
	assert_int_equal(fcntl(copy, F_GETFD), -1);
	closep(&fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(take_ptr_leaves_null),
		cmocka_unit_test(closep_closes_and_keeps_errno),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
