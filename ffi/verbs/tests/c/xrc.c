/* Extended reliable connections: one queue pair that sends, two receive queues of the peer's. */
#include "common.h"
#include <fcntl.h>

static struct ibv_xrcd *open_domain(struct end *e, int fd)
{
	struct ibv_xrcd_init_attr a = { IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, fd, O_CREAT };
	struct ibv_xrcd *d = ibv_open_xrcd(e->context, &a);
	CHECK(d);
	return d;
}

static struct ibv_srq *receive_queue(struct end *e, struct ibv_xrcd *d, uint32_t *number)
{
	struct ibv_srq_init_attr_ex a = { .attr = { .max_wr = 64, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .xrcd = d, .cq = e->recv_cq, .pd = e->pd,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ };
	struct ibv_srq *srq = ibv_create_srq_ex(e->context, &a);
	CHECK(srq);
	EQUAL(ibv_get_srq_num(srq, number), 0);
	CHECK(*number > 0);
	return srq;
}

static void receive(struct end *e, struct ibv_srq *srq, uint64_t wr_id, size_t at)
{
	struct ibv_sge sge = { (uintptr_t)e->bytes + at, 100, e->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	EQUAL(ibv_post_srq_recv(srq, &wr, &bad), 0);
}

static int send_to(struct end *e, uint64_t wr_id, enum ibv_wr_opcode op, uint32_t queue, const char *text, const struct names *to)
{
	size_t at = wr_id * 1000;
	strcpy(e->bytes + at, text);
	struct ibv_sge sge = { (uintptr_t)e->bytes + at, strlen(text), e->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.qp_type.xrc.remote_srqn = queue;
	wr.wr.rdma.remote_addr = to->addr + 50000;
	wr.wr.rdma.rkey = to->rkey;
	return ibv_post_send(e->qp, &wr, &bad);
}

int main(void)
{
	struct end a, b;
	open_end(&a);
	open_end(&b);
	struct ibv_xrcd *d = open_domain(&b, -1), *other = open_domain(&b, -1);
	uint32_t n[3];
	struct ibv_srq *q[3] = { receive_queue(&b, d, &n[0]), receive_queue(&b, d, &n[1]), receive_queue(&b, other, &n[2]) };
	EQUAL(ibv_close_xrcd(d), EBUSY);

	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .xrcd = d, .comp_mask = IBV_QP_INIT_ATTR_XRCD };
	b.qp = ibv_create_qp_ex(b.context, &init);
	CHECK(b.qp);
	init = (struct ibv_qp_init_attr_ex){ .qp_type = IBV_QPT_XRC_SEND, .pd = a.pd, .send_cq = a.send_cq, .cap = { .max_send_wr = 64, .max_send_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD };
	a.qp = ibv_create_qp_ex(a.context, &init);
	CHECK(a.qp);
	struct names na = names_of(&a), nb = names_of(&b);
	connect_qp(a.qp, &nb, &RC);
	connect_qp(b.qp, &na, &RC);
	EQUAL(post_recv(&a, 1, 0, 10), EINVAL);
	EQUAL(post_op(&b, 1, IBV_WR_SEND, 0, 10, NULL), EINVAL);

	for (int i = 0; i < 20; i++) {
		receive(&b, q[0], 100 + i, 1000 + 200 * i);
		receive(&b, q[1], 200 + i, 20000 + 200 * i);
	}
	/* In turn to both: in order, and each where it belongs. */
	for (int i = 0; i < 20; i++)
		EQUAL(send_to(&a, i, IBV_WR_SEND, n[i % 2], i % 2 ? "to the second" : "to the first", &nb), 0);
	for (int i = 0; i < 20; i++)
		EQUAL(expect(a.send_cq, i, IBV_WC_SUCCESS).qp_num, a.qp->qp_num);
	for (int i = 0; i < 20; i++) {
		struct ibv_wc wc = expect(b.recv_cq, (i % 2 ? 200 : 100) + i / 2, IBV_WC_SUCCESS);
		EQUAL(wc.qp_num, b.qp->qp_num);
		EQUAL(wc.byte_len, strlen(i % 2 ? "to the second" : "to the first"));
	}
	CHECK(!memcmp(b.bytes + 1000, "to the first", 12) && !memcmp(b.bytes + 20000, "to the second", 13));
	/* Writes, and what tells of them. */
	EQUAL(send_to(&a, 1, IBV_WR_RDMA_WRITE, n[0], "written", &nb), 0);
	EQUAL(send_to(&a, 2, IBV_WR_SEND, n[1], "done", &nb), 0);
	expect(a.send_cq, 1, IBV_WC_SUCCESS);
	expect(a.send_cq, 2, IBV_WC_SUCCESS);
	expect(b.recv_cq, 210, IBV_WC_SUCCESS);
	CHECK(!memcmp(b.bytes + 50000, "written", 7));
	/* The receive queue of another domain is none of this target's. */
	EQUAL(send_to(&a, 3, IBV_WR_SEND, n[2], "nowhere", &nb), 0);
	EQUAL(send_to(&a, 4, IBV_WR_SEND, n[0], "flushed", &nb), 0);
	expect(a.send_cq, 3, IBV_WC_REM_INV_REQ_ERR);
	expect(a.send_cq, 4, IBV_WC_WR_FLUSH_ERR);

	/* A queue pair anew, while the other end's goes. What it held is for others. */
	EQUAL(ibv_destroy_qp(a.qp), 0);
	a.qp = ibv_create_qp_ex(a.context, &init);
	CHECK(a.qp);
	na = names_of(&a);
	struct ibv_qp_attr reset = { .qp_state = IBV_QPS_RESET };
	EQUAL(ibv_modify_qp(b.qp, &reset, IBV_QP_STATE), 0);
	connect_qp(a.qp, &nb, &RC);
	connect_qp(b.qp, &na, &RC);
	EQUAL(send_to(&a, 5, IBV_WR_SEND, n[0], "again", &nb), 0);
	expect(a.send_cq, 5, IBV_WC_SUCCESS);
	EQUAL(expect(b.recv_cq, 110, IBV_WC_SUCCESS).byte_len, 5);

	EQUAL(ibv_destroy_qp(b.qp), 0);
	b.qp = NULL;
	for (int i = 0; i < 3; i++)
		EQUAL(ibv_destroy_srq(q[i]), 0);
	EQUAL(ibv_close_xrcd(d), 0);
	EQUAL(ibv_close_xrcd(other), 0);
	close_end(&a);
	close_end(&b);
	puts("ok");
	return 0;
}
