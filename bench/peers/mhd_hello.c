/* SPDX-License-Identifier: Apache-2.0
 * A peer to measure against: libmicrohttpd itself, answering every request with the same body from
 * memory. `mhd_hello THREADS BYTES` prints its port and serves until its standard input ends. */
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BODY_MAX = 1 << 20, THREADS_MAX = 64 };

struct hello {
	char *body;
	size_t len;
};

static enum MHD_Result answer(void *cls, struct MHD_Connection *conn, const char *url,
	const char *method, const char *version, const char *upload, size_t *upload_len, void **state)
{
	const struct hello *hello = cls;
	if (*state == NULL) { /* headers only: the request is not complete yet */
		*state = cls;
		return MHD_YES;
	}
	struct MHD_Response *res =
		MHD_create_response_from_buffer(hello->len, hello->body, MHD_RESPMEM_PERSISTENT);
	if (res == NULL)
		return MHD_NO;
	MHD_add_response_header(res, "Content-Type", "application/json");
	enum MHD_Result r = MHD_queue_response(conn, MHD_HTTP_OK, res);
	MHD_destroy_response(res);
	return r;
}

int main(int argc, char **argv)
{
	long threads = argc == 3 ? strtol(argv[1], NULL, 10) : 0;
	long bytes = argc == 3 ? strtol(argv[2], NULL, 10) : 0;
	if (threads < 1 || threads > THREADS_MAX || bytes < 1 || bytes > BODY_MAX) {
		fprintf(stderr, "usage: mhd_hello THREADS BYTES\n");
		return 2;
	}
	struct hello hello = { malloc((size_t)bytes), (size_t)bytes };
	if (hello.body == NULL)
		return 1;
	memset(hello.body, ' ', hello.len);
	struct sockaddr_in loopback = { .sin_family = AF_INET };
	loopback.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	struct MHD_Daemon *daemon = MHD_start_daemon(MHD_USE_EPOLL_INTERNAL_THREAD, 0, NULL, NULL,
		answer, &hello, MHD_OPTION_THREAD_POOL_SIZE, (unsigned int)threads, MHD_OPTION_SOCK_ADDR,
		(struct sockaddr *)&loopback, MHD_OPTION_END);
	if (daemon == NULL)
		return 1;
	printf("%u\n", (unsigned int)MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_BIND_PORT)->port);
	fflush(stdout);
	while (getchar() != EOF)
		;
	MHD_stop_daemon(daemon);
	free(hello.body);
	return 0;
}
