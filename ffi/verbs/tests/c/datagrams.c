/* Datagrams: by the functions that post, from a shared receive queue, and receives that fail. */
#include "common.h"

static struct ibv_ah *address(struct end *from, struct end *to, uint8_t traffic_class)
{
	struct ibv_ah_attr a = { .is_global = 1, .port_num = 1 };
	a.grh.traffic_class = traffic_class;
	a.grh.dgid = to->gid;
	a.grh.hop_limit = 64;
	struct ibv_ah *ah = ibv_create_ah(from->pd, &a);
	CHECK(ah);
	return ah;
}

/* The receiver finds the traffic class in the routing header, and answers with it. More classes than queue pairs carry arrive, too: without it. */
static void traffic_classes(struct end *a, struct end *b, struct ibv_srq *srq)
{
	enum { CLASSES = 12, CARRIED = 8 };
	int with = 0;
	for (int n = 1; n <= CLASSES; n++) {
		uint8_t traffic_class = (n * 5) << 2;
		struct ibv_ah *ah = address(a, b, traffic_class);
		struct ibv_sge place = { (uintptr_t)b->bytes, 200, b->mr->lkey };
		struct ibv_recv_wr receive = { .wr_id = n, .sg_list = &place, .num_sge = 1 }, *bad_receive;
		EQUAL(ibv_post_srq_recv(srq, &receive, &bad_receive), 0);
		struct ibv_sge sge = { (uintptr_t)a->bytes, 13, a->mr->lkey };
		struct ibv_send_wr wr = { .wr_id = n, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = b->qp->qp_num;
		wr.wr.ud.remote_qkey = 0x1111;
		EQUAL(ibv_post_send(a->qp, &wr, &bad), 0);
		expect(a->send_cq, n, IBV_WC_SUCCESS);
		struct ibv_wc wc = expect(b->recv_cq, n, IBV_WC_SUCCESS);
		EQUAL(wc.byte_len, 53);
		struct ibv_ah_attr back;
		EQUAL(ibv_init_ah_from_wc(b->context, 1, &wc, (struct ibv_grh *)b->bytes, &back), 0);
		EQUAL(back.grh.traffic_class, n <= CARRIED ? traffic_class : 0);
		with += back.grh.traffic_class != 0;
		EQUAL(ibv_destroy_ah(ah), 0);
	}
	EQUAL(with, CARRIED);
}

int main(void)
{
	struct end a, b;
	open_end(&a);
	open_end(&b);
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 16, .max_sge = 2 } };
	struct ibv_srq *srq = ibv_create_srq(b.pd, &init);
	CHECK(srq);
	struct settings ud = RC, shared = RC;
	ud.type = shared.type = IBV_QPT_UD;
	ud.ops = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
	shared.srq = srq;
	a.qp = make_qp(&a, &ud);
	b.qp = make_qp(&b, &shared);
	struct names none = { 0 };
	connect_qp(a.qp, &none, &ud);
	connect_qp(b.qp, &none, &shared);
	EQUAL(ibv_destroy_srq(srq), EBUSY);
	EQUAL(post_recv(&b, 1, 0, 100), EINVAL);

	struct ibv_ah *ah = address(&a, &b, 0);
	for (int i = 0; i < 3; i++) {
		struct ibv_sge two[2] = { { (uintptr_t)b.bytes + i * 1000, 40, b.mr->lkey }, { (uintptr_t)b.bytes + i * 1000 + 500, 200, b.mr->lkey } };
		struct ibv_recv_wr wr = { .wr_id = 10 + i, .sg_list = two, .num_sge = 2 }, *bad;
		EQUAL(ibv_post_srq_recv(srq, &wr, &bad), 0);
	}
	memcpy(a.bytes, "of a datagram", 13);
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(a.qp);
	CHECK(qp);
	ibv_wr_start(qp);
	qp->wr_id = 1;
	qp->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED;
	ibv_wr_send_imm(qp, htobe32(77));
	ibv_wr_set_ud_addr(qp, ah, b.qp->qp_num, 0x1111);
	ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.bytes, 13);
	qp->wr_id = 2;
	ibv_wr_send(qp);
	ibv_wr_set_ud_addr(qp, ah, b.qp->qp_num, 0x1111);
	ibv_wr_set_inline_data(qp, "inline", 6);
	EQUAL(ibv_wr_complete(qp), 0);
	expect(a.send_cq, 1, IBV_WC_SUCCESS);
	expect(a.send_cq, 2, IBV_WC_SUCCESS);
	struct ibv_wc wc = expect(b.recv_cq, 10, IBV_WC_SUCCESS);
	EQUAL(wc.byte_len, 53);
	EQUAL(wc.imm_data, htobe32(77));
	EQUAL(wc.wc_flags, IBV_WC_GRH | IBV_WC_WITH_IMM);
	EQUAL(wc.src_qp, a.qp->qp_num);
	EQUAL(wc.qp_num, b.qp->qp_num);
	CHECK(!memcmp(b.bytes + 500, "of a datagram", 13));
	EQUAL(expect(b.recv_cq, 11, IBV_WC_SUCCESS).byte_len, 46);
	CHECK(!memcmp(b.bytes + 1500, "inline", 6));

	/* No address: the whole batch is refused. */
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.bytes, 13);
	CHECK(ibv_wr_complete(qp) != 0);
	ibv_wr_start(qp);
	ibv_wr_send(qp);
	ibv_wr_abort(qp);

	/* One that is longer than its receive. */
	ibv_wr_start(qp);
	qp->wr_id = 3;
	ibv_wr_send(qp);
	ibv_wr_set_ud_addr(qp, ah, b.qp->qp_num, 0x1111);
	ibv_wr_set_sge(qp, a.mr->lkey, (uintptr_t)a.bytes, 1000);
	EQUAL(ibv_wr_complete(qp), 0);
	expect(a.send_cq, 3, IBV_WC_SUCCESS);
	expect(b.recv_cq, 12, IBV_WC_LOC_LEN_ERR);

	EQUAL(ibv_destroy_ah(ah), 0);
	traffic_classes(&a, &b, srq);
	EQUAL(ibv_destroy_qp(b.qp), 0);
	b.qp = NULL;
	EQUAL(ibv_destroy_srq(srq), 0);

	/* A receive whose memory may not be used completes where receives do. */
	struct settings rc = RC;
	EQUAL(ibv_destroy_qp(a.qp), 0);
	connect_ends(&a, &b, &rc);
	struct ibv_sge sge = { (uintptr_t)b.bytes, 100, ~b.mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 20, .sg_list = &sge, .num_sge = 1 }, *bad;
	EQUAL(ibv_post_recv(b.qp, &wr, &bad), 0);
	expect(b.recv_cq, 20, IBV_WC_LOC_PROT_ERR);
	EQUAL(ibv_poll_cq(b.send_cq, 1, &wc), 0);
	close_end(&a);
	close_end(&b);
	puts("ok");
	return 0;
}
