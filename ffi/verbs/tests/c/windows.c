/* Memory windows of both types, keys made void by either end, and regions registered anew. */
#include "common.h"

static struct ibv_mw_bind_info info(struct end *e, size_t at, size_t len, unsigned int access)
{
	struct ibv_mw_bind_info i = { e->mr, (uintptr_t)e->bytes + at, len, access };
	return i;
}

static int post_bind(struct end *e, uint64_t wr_id, struct ibv_mw *mw, uint32_t rkey, struct ibv_mw_bind_info i)
{
	struct ibv_send_wr wr = { .wr_id = wr_id, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED }, *bad;
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = rkey;
	wr.bind_mw.bind_info = i;
	return ibv_post_send(e->qp, &wr, &bad);
}

static int post_void(struct end *e, uint64_t wr_id, enum ibv_wr_opcode op, uint32_t rkey)
{
	struct ibv_sge sge = { (uintptr_t)e->bytes, 10, e->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = wr_id, .opcode = op, .send_flags = IBV_SEND_SIGNALED, .invalidate_rkey = rkey }, *bad;
	if (op == IBV_WR_SEND_WITH_INV) {
		wr.sg_list = &sge;
		wr.num_sge = 1;
	}
	return ibv_post_send(e->qp, &wr, &bad);
}

/* Whether a may write to what a key of b shows. Afterwards both have new queue pairs if not. */
static void write_is(struct end *a, struct end *b, uint32_t rkey, size_t at, uint32_t len, enum ibv_wc_status status)
{
	struct names to = { 0, rkey, (uintptr_t)b->bytes + at, b->gid };
	EQUAL(post_op(a, 77, IBV_WR_RDMA_WRITE, 0, len, &to), 0);
	expect(a->send_cq, 77, status);
	if (status == IBV_WC_SUCCESS)
		return;
	EQUAL(ibv_destroy_qp(a->qp), 0);
	EQUAL(ibv_destroy_qp(b->qp), 0);
	struct ibv_wc wc;
	while (ibv_poll_cq(b->recv_cq, 1, &wc) > 0)
		;
	connect_ends(a, b, &RC);
}

static void type_1(struct end *a, struct end *b)
{
	connect_ends(a, b, &RC);
	CHECK(!ibv_alloc_mw(b->pd, 3));
	struct ibv_mw *mw = ibv_alloc_mw(b->pd, IBV_MW_TYPE_1);
	CHECK(mw);
	uint32_t first = mw->rkey;
	struct ibv_mw_bind bind = { 5, IBV_SEND_SIGNALED, info(b, 1000, 2000, IBV_ACCESS_REMOTE_WRITE) };
	EQUAL(ibv_bind_mw(b->qp, mw, &bind), 0);
	EQUAL(expect(b->send_cq, 5, IBV_WC_SUCCESS).opcode, IBV_WC_BIND_MW);
	CHECK(mw->rkey != first && mw->rkey >> 8 == first >> 8);
	write_is(a, b, mw->rkey, 1000, 2000, IBV_WC_SUCCESS);
	write_is(a, b, mw->rkey, 1001, 2000, IBV_WC_REM_ACCESS_ERR);
	write_is(a, b, mw->rkey, 999, 1, IBV_WC_REM_ACCESS_ERR);
	write_is(a, b, first, 1000, 1, IBV_WC_REM_ACCESS_ERR);
	/* Reads were not allowed. */
	struct names to = { 0, mw->rkey, (uintptr_t)b->bytes + 1000, b->gid };
	EQUAL(post_op(a, 6, IBV_WR_RDMA_READ, 0, 10, &to), 0);
	expect(a->send_cq, 6, IBV_WC_REM_ACCESS_ERR);
	write_is(a, b, ~mw->rkey, 0, 1, IBV_WC_WR_FLUSH_ERR);
	EQUAL(ibv_dereg_mr(b->mr), EBUSY);
	/* Of no bytes: unbound. */
	uint32_t bound = mw->rkey;
	struct ibv_mw_bind unbind = { 7, IBV_SEND_SIGNALED, { b->mr, 0, 0, 0 } };
	EQUAL(ibv_bind_mw(b->qp, mw, &unbind), 0);
	expect(b->send_cq, 7, IBV_WC_SUCCESS);
	write_is(a, b, bound, 1000, 1, IBV_WC_REM_ACCESS_ERR);
	EQUAL(ibv_dealloc_mw(mw), 0);
	EQUAL(ibv_destroy_qp(a->qp), 0);
	EQUAL(ibv_destroy_qp(b->qp), 0);
}

static void type_2(struct end *a, struct end *b)
{
	connect_ends(a, b, &RC);
	struct ibv_mw *mw = ibv_alloc_mw(b->pd, IBV_MW_TYPE_2);
	CHECK(mw);
	EQUAL(ibv_bind_mw(b->qp, mw, &(struct ibv_mw_bind){ 0 }), EINVAL);
	uint32_t rkey = ibv_inc_rkey(mw->rkey);
	EQUAL(post_bind(b, 1, mw, rkey, info(b, 0, 300000, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)), 0);
	EQUAL(expect(b->send_cq, 1, IBV_WC_SUCCESS).opcode, IBV_WC_BIND_MW);
	/* Of many packets: each is looked at. */
	memset(a->bytes, 7, 300000);
	write_is(a, b, rkey, 0, 300000, IBV_WC_SUCCESS);
	CHECK(b->bytes[299999] == 7);
	write_is(a, b, rkey, 1, 300000, IBV_WC_REM_ACCESS_ERR);
	/* The queue pair that it was bound for is gone. */
	write_is(a, b, rkey, 0, 1, IBV_WC_REM_ACCESS_ERR);

	/* The peer makes the key void. */
	rkey = ibv_inc_rkey(rkey);
	EQUAL(post_bind(b, 2, mw, rkey, info(b, 0, 100, IBV_ACCESS_REMOTE_WRITE)), 0);
	expect(b->send_cq, 2, IBV_WC_SUCCESS);
	write_is(a, b, rkey, 0, 100, IBV_WC_SUCCESS);
	EQUAL(post_recv(b, 3, 5000, 100), 0);
	EQUAL(post_void(a, 4, IBV_WR_SEND_WITH_INV, rkey), 0);
	expect(a->send_cq, 4, IBV_WC_SUCCESS);
	struct ibv_wc wc = expect(b->recv_cq, 3, IBV_WC_SUCCESS);
	EQUAL(wc.wc_flags, IBV_WC_WITH_INV);
	EQUAL(wc.invalidated_rkey, rkey);
	EQUAL(wc.byte_len, 10);
	write_is(a, b, rkey, 0, 1, IBV_WC_REM_ACCESS_ERR);

	/* We make it void ourselves; a second time there is none. */
	rkey = ibv_inc_rkey(rkey);
	EQUAL(post_bind(b, 5, mw, rkey, info(b, 0, 100, IBV_ACCESS_REMOTE_WRITE)), 0);
	EQUAL(post_void(b, 6, IBV_WR_LOCAL_INV, rkey), 0);
	expect(b->send_cq, 5, IBV_WC_SUCCESS);
	EQUAL(expect(b->send_cq, 6, IBV_WC_SUCCESS).opcode, IBV_WC_LOCAL_INV);
	write_is(a, b, rkey, 0, 1, IBV_WC_REM_ACCESS_ERR);
	EQUAL(post_void(b, 7, IBV_WR_LOCAL_INV, rkey), 0);
	EQUAL(post_op(b, 8, IBV_WR_SEND, 0, 1, NULL), 0);
	expect(b->send_cq, 7, IBV_WC_MW_BIND_ERR);
	struct ibv_wc flushed;
	CHECK(poll_for(b->send_cq, &flushed, 20));
	CHECK(flushed.wr_id == 8 && flushed.status != IBV_WC_SUCCESS);
	/* A key of a region is not made void, and a foreign key not bound. */
	write_is(a, b, 0, 0, 1, IBV_WC_RETRY_EXC_ERR);
	EQUAL(post_bind(b, 9, mw, rkey ^ 0x10000, info(b, 0, 100, IBV_ACCESS_REMOTE_WRITE)), 0);
	expect(b->send_cq, 9, IBV_WC_MW_BIND_ERR);
	EQUAL(ibv_dealloc_mw(mw), 0);
	EQUAL(ibv_destroy_qp(a->qp), 0);
	EQUAL(ibv_destroy_qp(b->qp), 0);
}

static void by_functions(struct end *a, struct end *b)
{
	struct settings s = RC;
	s.ops = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_RDMA_WRITE;
	connect_ends(a, b, &s);
	struct ibv_mw *mw = ibv_alloc_mw(b->pd, IBV_MW_TYPE_2);
	CHECK(mw);
	uint32_t rkey = ibv_inc_rkey(mw->rkey);
	struct ibv_mw_bind_info i = info(b, 0, 100, IBV_ACCESS_REMOTE_WRITE);
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(b->qp), *y = ibv_qp_to_qp_ex(a->qp);
	ibv_wr_start(x);
	x->wr_id = 1;
	x->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_bind_mw(x, mw, rkey, &i);
	EQUAL(ibv_wr_complete(x), 0);
	expect(b->send_cq, 1, IBV_WC_SUCCESS);
	write_is(a, b, rkey, 0, 100, IBV_WC_SUCCESS);
	EQUAL(post_recv(b, 3, 5000, 100), 0);
	ibv_wr_start(y);
	y->wr_id = 2;
	y->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send_inv(y, rkey);
	ibv_wr_set_sge(y, a->mr->lkey, (uintptr_t)a->bytes, 5);
	EQUAL(ibv_wr_complete(y), 0);
	expect(a->send_cq, 2, IBV_WC_SUCCESS);
	EQUAL(expect(b->recv_cq, 3, IBV_WC_SUCCESS).invalidated_rkey, rkey);
	EQUAL(ibv_dealloc_mw(mw), 0);
	EQUAL(ibv_destroy_qp(a->qp), 0);
	EQUAL(ibv_destroy_qp(b->qp), 0);
}

static void again(struct end *a, struct end *b)
{
	connect_ends(a, b, &RC);
	EQUAL(ibv_rereg_mr(b->mr, 0, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	uint32_t rkey = b->mr->rkey;
	EQUAL(ibv_rereg_mr(b->mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE), 0);
	EQUAL(b->mr->rkey, rkey);
	write_is(a, b, b->mr->rkey, 0, 10, IBV_WC_REM_ACCESS_ERR);
	int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	EQUAL(ibv_rereg_mr(b->mr, IBV_REREG_MR_CHANGE_ACCESS | IBV_REREG_MR_CHANGE_TRANSLATION, NULL, b->bytes + 4096, 4096, rights), 0);
	write_is(a, b, b->mr->rkey, 4096, 4096, IBV_WC_SUCCESS);
	write_is(a, b, b->mr->rkey, 4095, 1, IBV_WC_REM_ACCESS_ERR);
}

int main(void)
{
	struct end a, b;
	open_end(&a);
	open_end(&b);
	type_1(&a, &b);
	type_2(&a, &b);
	by_functions(&a, &b);
	again(&a, &b);
	close_end(&a);
	close_end(&b);
	puts("ok");
	return 0;
}
