/* A network that cannot be used any more: the socket is taken away from under the library. */
#include "common.h"
#include <dirent.h>
#include <fcntl.h>

static int take_sockets_away(void)
{
	DIR *d = opendir("/proc/self/fd");
	CHECK(d);
	int found[64], n = 0, null = open("/dev/null", O_RDWR);
	CHECK(null >= 0);
	for (struct dirent *e; (e = readdir(d)) && n < 64;) {
		int fd = atoi(e->d_name), type = 0;
		socklen_t len = sizeof type;
		if (!getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) && type == SOCK_DGRAM)
			found[n++] = fd;
	}
	closedir(d);
	for (int i = 0; i < n; i++)
		CHECK(dup2(null, found[i]) == found[i]);
	return n;
}

int main(void)
{
	struct end a, b;
	open_end(&a);
	open_end(&b);
	connect_ends(&a, &b, &RC);
	EQUAL(post_recv(&a, 9, 0, 10), 0);
	struct names nb = names_of(&b);
	EQUAL(post_op(&a, 1, IBV_WR_RDMA_WRITE, 0, 10, &nb), 0);
	expect(a.send_cq, 1, IBV_WC_SUCCESS);
	CHECK(take_sockets_away() > 0);
	EQUAL(post_op(&a, 2, IBV_WR_RDMA_WRITE, 0, 10, &nb), 0);
	struct ibv_wc wc;
	CHECK(poll_for(a.send_cq, &wc, 20));
	EQUAL(wc.wr_id, 2);
	CHECK(wc.status == IBV_WC_RETRY_EXC_ERR || wc.status == IBV_WC_WR_FLUSH_ERR);
	expect(a.recv_cq, 9, IBV_WC_WR_FLUSH_ERR);
	EQUAL(post_op(&a, 3, IBV_WR_RDMA_WRITE, 0, 10, &nb), 0);
	expect(a.send_cq, 3, IBV_WC_WR_FLUSH_ERR);
	struct ibv_async_event event;
	int fatal = 0, device = 0;
	for (int i = 0; i < 2; i++) {
		CHECK(!ibv_get_async_event(a.context, &event));
		fatal += event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == a.qp;
		device += event.event_type == IBV_EVENT_DEVICE_FATAL;
		ibv_ack_async_event(&event);
	}
	EQUAL(fatal, 1);
	EQUAL(device, 1);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	EQUAL(ibv_query_qp(a.qp, &attr, IBV_QP_STATE, &init), 0);
	EQUAL(attr.qp_state, IBV_QPS_ERR);
	/* A new one cannot be connected. */
	struct ibv_qp *qp = make_qp(&a, &RC);
	EQUAL(to_init(qp), 0);
	CHECK(to_rtr(qp, &nb, &RC) != 0);
	EQUAL(ibv_destroy_qp(qp), 0);
	close_end(&a);
	close_end(&b);
	puts("ok");
	return 0;
}
