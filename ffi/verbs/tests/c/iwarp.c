/* Queue pairs that take streams: what there is not, and a peer that is killed. */
#include "common.h"

static void refused(void)
{
	struct end a, b;
	open_end(&a);
	open_end(&b);
	struct ibv_device_attr has;
	EQUAL(ibv_query_device(a.context, &has), 0);
	EQUAL(has.device_cap_flags & (IBV_DEVICE_XRC | IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B), 0);
	EQUAL(has.max_mw + has.max_ah + has.max_mcast_grp, 0);
	struct ibv_qp_init_attr init = { .send_cq = a.send_cq, .recv_cq = a.recv_cq, .cap = { 1, 1, 1, 1, 0 } };
	for (int again = 0; again < 2; again++) {
		init.qp_type = IBV_QPT_UD;
		CHECK(!ibv_create_qp(a.pd, &init) && errno == EOPNOTSUPP);
		init.qp_type = IBV_QPT_UC;
		CHECK(!ibv_create_qp(a.pd, &init) && errno == EOPNOTSUPP);
	}
	struct ibv_xrcd_init_attr domain = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = 0 };
	CHECK(!ibv_open_xrcd(a.context, &domain) && errno == EOPNOTSUPP);
	CHECK(!ibv_alloc_mw(a.pd, IBV_MW_TYPE_1) && errno == EOPNOTSUPP);
	connect_ends(&a, &b, &RC);
	EQUAL(post_op(&a, 1, IBV_WR_SEND_WITH_IMM, 0, 10, NULL), EOPNOTSUPP);
	/* And the queue pair goes on. */
	EQUAL(post_recv(&b, 2, 100, 10), 0);
	EQUAL(post_op(&a, 3, IBV_WR_SEND, 0, 10, NULL), 0);
	expect(a.send_cq, 3, IBV_WC_SUCCESS);
	expect(b.recv_cq, 2, IBV_WC_SUCCESS);
	close_end(&a);
	close_end(&b);
}

/* Also who only waits is told. */
static void killed_peer(int socket, pid_t child)
{
	struct end e;
	open_end(&e);
	e.qp = make_qp(&e, &RC);
	struct names peer = swap_names(socket, &e);
	connect_qp(e.qp, &peer, &RC);
	if (child == 0) {
		hear(socket);
		for (;;)
			pause();
	}
	EQUAL(post_op(&e, 1, IBV_WR_RDMA_READ, 0, 10, &peer), 0);
	expect(e.send_cq, 1, IBV_WC_SUCCESS);
	EQUAL(post_recv(&e, 7, 0, 10), 0);
	CHECK(!kill(child, SIGKILL));
	CHECK(waitpid(child, NULL, 0) == child);
	double start = seconds();
	expect(e.recv_cq, 7, IBV_WC_WR_FLUSH_ERR);
	CHECK(seconds() - start < 10);
	EQUAL(post_op(&e, 2, IBV_WR_RDMA_WRITE, 0, 10, &peer), 0);
	expect(e.send_cq, 2, IBV_WC_WR_FLUSH_ERR);
	close_end(&e);
}

int main(void)
{
	int socket;
	pid_t child = split(&socket);
	killed_peer(socket, child);
	refused();
	puts("ok");
	return 0;
}
