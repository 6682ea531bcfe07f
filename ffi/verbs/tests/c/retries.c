/* Sends that get nowhere: no receive at the peer, and a peer that is killed. */
#include "common.h"

/* A send that finds no receive fails, and does not hold up another queue pair; with rnr_retry 7 it waits. */
static void receiver_not_ready(void)
{
	struct end a, b;
	open_end(&a);
	open_end(&b);
	struct settings s = RC;
	s.rnr_retry = 2;
	connect_ends(&a, &b, &s);
	struct end c = a, d = b;
	connect_ends(&c, &d, &RC);
	/* What another pair sends comes first. */
	EQUAL(post_op(&a, 1, IBV_WR_SEND, 0, 10, NULL), 0);
	EQUAL(post_op(&a, 2, IBV_WR_SEND, 0, 10, NULL), 0);
	EQUAL(post_recv(&d, 3, 100, 10), 0);
	EQUAL(post_op(&c, 4, IBV_WR_SEND, 0, 10, NULL), 0);
	EQUAL(expect(a.send_cq, 4, IBV_WC_SUCCESS).qp_num, c.qp->qp_num);
	EQUAL(expect(a.send_cq, 1, IBV_WC_RNR_RETRY_EXC_ERR).qp_num, a.qp->qp_num);
	expect(a.send_cq, 2, IBV_WC_WR_FLUSH_ERR);
	expect(d.recv_cq, 3, IBV_WC_SUCCESS);
	/* For ever: until the receive is there. */
	EQUAL(post_op(&c, 5, IBV_WR_SEND, 0, 10, NULL), 0);
	struct ibv_wc wc;
	EQUAL(poll_for(c.send_cq, &wc, 1.5), 0);
	EQUAL(post_recv(&d, 6, 100, 10), 0);
	expect(c.send_cq, 5, IBV_WC_SUCCESS);
	expect(d.recv_cq, 6, IBV_WC_SUCCESS);
	EQUAL(ibv_destroy_qp(c.qp), 0);
	EQUAL(ibv_destroy_qp(d.qp), 0);
	close_end(&a);
	close_end(&b);
}

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
	EQUAL(post_op(&e, 1, IBV_WR_RDMA_WRITE, 0, 10, &peer), 0);
	expect(e.send_cq, 1, IBV_WC_SUCCESS);
	CHECK(!kill(child, SIGKILL));
	CHECK(waitpid(child, NULL, 0) == child);
	double start = seconds();
	EQUAL(post_recv(&e, 7, 0, 10), 0);
	EQUAL(post_op(&e, 2, IBV_WR_RDMA_WRITE, 0, 10, &peer), 0);
	EQUAL(post_op(&e, 3, IBV_WR_RDMA_READ, 0, 10, &peer), 0);
	expect(e.send_cq, 2, IBV_WC_RETRY_EXC_ERR);
	/* Not by the connection's own time-out of 15 s. */
	CHECK(seconds() - start < 13);
	expect(e.send_cq, 3, IBV_WC_WR_FLUSH_ERR);
	expect(e.recv_cq, 7, IBV_WC_WR_FLUSH_ERR);
	EQUAL(post_op(&e, 4, IBV_WR_SEND, 0, 10, NULL), 0);
	expect(e.send_cq, 4, IBV_WC_WR_FLUSH_ERR);
	close_end(&e);
}

int main(void)
{
	int socket;
	pid_t child = split(&socket);
	killed_peer(socket, child);
	receiver_not_ready();
	puts("ok");
	return 0;
}
