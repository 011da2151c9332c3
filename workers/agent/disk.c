/* SPDX-License-Identifier: Apache-2.0
 * Names that others send, and the tail of a log. */
#include "workers/agent/disk.h"

#include "core/base/file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	TAIL_BYTES = 16 * 1024,
	TAIL_LINE_MAX = 400, /* bytes of one line that are told */
};

bool disk_name_ok(const char *name)
{
	return name[0] != '\0' && name[0] != '.' && strchr(name, '/') == NULL && strlen(name) <= 200;
}

void disk_tail(const char *path, int lines, struct json_writer *w)
{
	cleanup(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	cleanup(freep) char *text = malloc(TAIL_BYTES + 1);
	struct stat st;
	size_t bytes = 0;
	if (fd < 0 || text == NULL || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return;
	if (st.st_size > TAIL_BYTES && lseek(fd, st.st_size - TAIL_BYTES, SEEK_SET) < 0)
		return;
	if (file_read_fd(fd, text, TAIL_BYTES, &bytes) < 0)
		return;
	text[bytes] = '\0';
	while (bytes > 0 && text[bytes - 1] == '\n')
		text[--bytes] = '\0';
	char *from = text + bytes;
	for (int found = 0; from > text; from--)
		if (from[-1] == '\n' && ++found == lines)
			break;
	while (bytes > 0 && from != NULL && *from != '\0') {
		size_t length = strcspn(from, "\n");
		json_put_strn(w, from, length < TAIL_LINE_MAX ? length : TAIL_LINE_MAX);
		from += length + (from[length] == '\n');
	}
}
