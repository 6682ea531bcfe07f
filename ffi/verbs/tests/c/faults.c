/* Completion queues that resize, queue pairs without functions that post, and memory that is unmapped while it is registered. */
#include "common.h"

static void resize(void)
{
	struct end a, b;
	open_end(&a);
	open_end(&b);
	connect_ends(&a, &b, &RC);
	struct ibv_cq *cq = a.send_cq;
	EQUAL(cq->cqe, 256);
	EQUAL(ibv_resize_cq(cq, 0), EINVAL);
	EQUAL(ibv_resize_cq(cq, -1), EINVAL);
	EQUAL(ibv_resize_cq(cq, INT32_MAX), EINVAL);
	EQUAL(cq->cqe, 256);
	struct names nb = names_of(&b);
	for (int i = 0; i < 40; i++)
		EQUAL(post_op(&a, i, IBV_WR_RDMA_WRITE, 0, 8, &nb), 0);
	/* The last one has completed once its bytes are there and acknowledged. */
	struct ibv_wc wc;
	CHECK(poll_for(cq, &wc, 20));
	EQUAL(wc.wr_id, 0);
	double start = seconds();
	while (ibv_resize_cq(cq, 38) == 0 && seconds() - start < 20) {
		EQUAL(ibv_resize_cq(cq, 256), 0);
		usleep(1000);
	}
	EQUAL(ibv_resize_cq(cq, 38), EINVAL);
	EQUAL(ibv_resize_cq(cq, 39), 0);
	EQUAL(cq->cqe, 39);
	EQUAL(ibv_resize_cq(cq, 1000), 0);
	EQUAL(cq->cqe, 1000);
	for (int i = 40; i < 60; i++)
		EQUAL(post_op(&a, i, IBV_WR_RDMA_WRITE, 0, 8, &nb), 0);
	for (int i = 1; i < 60; i++)
		expect(cq, i, IBV_WC_SUCCESS);
	close_end(&a);
	close_end(&b);
}

static void functions_that_post(void)
{
	struct end a, b;
	open_end(&a);
	open_end(&b);
	struct settings with = RC;
	with.ops = IBV_QP_EX_WITH_RDMA_WRITE;
	struct ibv_qp *plain = make_qp(&a, &RC);
	CHECK(!ibv_qp_to_qp_ex(plain));
	EQUAL(ibv_destroy_qp(plain), 0);
	struct ibv_qp_init_attr_ex ex = { .send_cq = a.send_cq, .recv_cq = a.recv_cq, .cap = { 4, 4, 1, 1, 0 }, .qp_type = IBV_QPT_RC,
		.pd = a.pd, .comp_mask = IBV_QP_INIT_ATTR_PD };
	struct ibv_qp *without = ibv_create_qp_ex(a.context, &ex);
	CHECK(without && !ibv_qp_to_qp_ex(without));
	EQUAL(ibv_destroy_qp(without), 0);
	connect_ends(&a, &b, &with);
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a.qp);
	CHECK(qp);
	ibv_wr_start(qp);
	qp->wr_id = 5;
	qp->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(qp, b.mr->rkey, (uintptr_t)b.bytes);
	ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.bytes, 100);
	EQUAL(ibv_wr_complete(qp), 0);
	expect(a.send_cq, 5, IBV_WC_SUCCESS);
	close_end(&a);
	close_end(&b);
}

/* What is not there any more fails the work request, at the end that it belongs to and at the other one. */
static void vanished_memory(void)
{
	struct { enum ibv_wr_opcode op; int vanishes_at_peer; uint32_t len; enum ibv_wc_status status; } cases[] = {
		{ IBV_WR_SEND, 0, 100, IBV_WC_LOC_PROT_ERR },
		{ IBV_WR_RDMA_WRITE, 0, 100000, IBV_WC_LOC_PROT_ERR },
		{ IBV_WR_RDMA_WRITE, 1, 100, IBV_WC_REM_ACCESS_ERR },
		{ IBV_WR_RDMA_WRITE, 1, 100000, IBV_WC_REM_ACCESS_ERR },
		{ IBV_WR_RDMA_READ, 1, 100, IBV_WC_REM_ACCESS_ERR },
		{ IBV_WR_RDMA_READ, 1, 100000, IBV_WC_REM_ACCESS_ERR },
		{ IBV_WR_RDMA_READ, 0, 100, IBV_WC_LOC_PROT_ERR },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct end a, b;
		open_end(&a);
		open_end(&b);
		connect_ends(&a, &b, &RC);
		struct names nb = names_of(&b);
		EQUAL(post_recv(&b, 9, 500000, 200), 0);
		EQUAL(post_op(&a, 1, IBV_WR_RDMA_WRITE, 0, 100, &nb), 0);
		expect(a.send_cq, 1, IBV_WC_SUCCESS);
		char *gone = cases[i].vanishes_at_peer ? b.bytes : a.bytes;
		CHECK(!munmap(gone, 4096));
		EQUAL(post_op(&a, 2, cases[i].op, 0, cases[i].len, &nb), 0);
		struct ibv_wc wc;
		CHECK(poll_for(a.send_cq, &wc, 20));
		if (wc.status != cases[i].status)
			fprintf(stderr, "case %zu: %s\n", i, ibv_wc_status_str(wc.status));
		EQUAL(wc.status, cases[i].status);
		if (cases[i].op == IBV_WR_SEND) {
			/* No receive is ever filled with bytes that nobody sent. */
			CHECK(poll_for(b.recv_cq, &wc, 20));
			CHECK(wc.status != IBV_WC_SUCCESS);
		}
		close_end(&a);
		close_end(&b);
	}
}

int main(void)
{
	resize();
	functions_that_post();
	vanished_memory();
	puts("ok");
	return 0;
}
