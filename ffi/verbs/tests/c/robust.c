/* Wrong orders, states, handles and lists; threads, fork, and many connections. Built with the address sanitizer. */
#include "common.h"
#include <dirent.h>
#include <pthread.h>

static void wrong_orders(void)
{
	struct end e;
	open_end(&e);
	EQUAL(ibv_dealloc_pd(e.pd), EBUSY);
	e.qp = make_qp(&e, &RC);
	EQUAL(ibv_destroy_cq(e.send_cq), EBUSY);
	EQUAL(ibv_destroy_cq(e.recv_cq), EBUSY);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(e.context);
	CHECK(channel);
	struct ibv_cq *cq = ibv_create_cq(e.context, 1, &e, channel, 0);
	CHECK(cq && cq->cq_context == &e);
	EQUAL(ibv_destroy_comp_channel(channel), EBUSY);
	EQUAL(ibv_destroy_cq(cq), 0);
	EQUAL(ibv_destroy_comp_channel(channel), 0);
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(e.pd, &init);
	CHECK(srq);
	struct settings shares = RC;
	shares.srq = srq;
	struct ibv_qp *qp = make_qp(&e, &shares);
	EQUAL(ibv_destroy_srq(srq), EBUSY);
	EQUAL(ibv_destroy_qp(qp), 0);
	EQUAL(ibv_destroy_srq(srq), 0);
	/* Receives do not keep memory registered. */
	EQUAL(to_init(e.qp), 0);
	EQUAL(post_recv(&e, 1, 0, 10), 0);
	double start = seconds();
	struct ibv_mr *mr = e.mr;
	EQUAL(ibv_dereg_mr(mr), 0);
	CHECK(seconds() - start < 4);
	e.mr = ibv_reg_mr(e.pd, e.bytes, LEN, IBV_ACCESS_LOCAL_WRITE);
	CHECK(e.mr);
	close_end(&e);
}

static void null_handles(void)
{
	struct end e;
	open_end(&e);
	EQUAL(ibv_dealloc_pd(NULL), EINVAL);
	EQUAL(ibv_dereg_mr(NULL), EINVAL);
	EQUAL(ibv_destroy_cq(NULL), EINVAL);
	EQUAL(ibv_destroy_qp(NULL), EINVAL);
	EQUAL(ibv_destroy_srq(NULL), EINVAL);
	EQUAL(ibv_destroy_ah(NULL), EINVAL);
	EQUAL(ibv_destroy_comp_channel(NULL), EINVAL);
	EQUAL(ibv_resize_cq(NULL, 1), EINVAL);
	EQUAL(ibv_close_device(NULL), EINVAL);
	CHECK(!ibv_open_device(NULL) && !ibv_alloc_pd(NULL));
	CHECK(!ibv_create_qp(NULL, NULL) && !ibv_create_qp(e.pd, NULL) && !ibv_create_srq(e.pd, NULL) && !ibv_create_ah(e.pd, NULL));
	ibv_free_device_list(NULL);
	ibv_ack_cq_events(NULL, 1);
	/* Memory that is not there, rights that make no sense, lengths that wrap. */
	CHECK(!ibv_reg_mr(e.pd, NULL, 4096, IBV_ACCESS_LOCAL_WRITE));
	CHECK(!ibv_reg_mr(e.pd, e.bytes, LEN, IBV_ACCESS_REMOTE_WRITE));
	CHECK(!ibv_reg_mr(e.pd, e.bytes, SIZE_MAX, IBV_ACCESS_LOCAL_WRITE));
	CHECK(!ibv_reg_mr(e.pd, e.bytes, LEN, 1 << 15));
	struct ibv_mr *empty = ibv_reg_mr(e.pd, e.bytes, 0, 0);
	CHECK(empty);
	EQUAL(ibv_dereg_mr(empty), 0);
	/* Queue pairs that are too large, or of no kind. */
	struct ibv_qp_init_attr init = { .send_cq = e.send_cq, .recv_cq = e.recv_cq, .cap = { 1 << 30, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	CHECK(!ibv_create_qp(e.pd, &init));
	init.cap.max_send_wr = 1;
	init.qp_type = 77;
	CHECK(!ibv_create_qp(e.pd, &init));
	init.qp_type = IBV_QPT_RC;
	init.send_cq = NULL;
	CHECK(!ibv_create_qp(e.pd, &init));
	CHECK(!ibv_create_cq(e.context, 0, NULL, NULL, 0) && !ibv_create_cq(e.context, 1, NULL, NULL, 9));
	close_end(&e);
}

static void wrong_states_and_lists(void)
{
	struct end a, b;
	open_end(&a);
	open_end(&b);
	struct settings s = RC;
	s.send_wr = 3;
	s.recv_wr = 2;
	a.qp = make_qp(&a, &s);
	b.qp = make_qp(&b, &s);
	struct names na = names_of(&a), nb = names_of(&b);
	EQUAL(post_recv(&a, 1, 0, 10), EINVAL);
	EQUAL(post_op(&a, 1, IBV_WR_SEND, 0, 10, NULL), EINVAL);
	EQUAL(to_rts(a.qp, &s), EINVAL);
	EQUAL(to_rtr(a.qp, &nb, &s), EINVAL);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 2 };
	EQUAL(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE), EINVAL);
	EQUAL(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_PORT | IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS), EINVAL);
	EQUAL(to_init(a.qp), 0);
	EQUAL(post_op(&a, 1, IBV_WR_SEND, 0, 10, NULL), EINVAL);
	EQUAL(to_rtr(a.qp, &nb, &s), 0);
	EQUAL(post_op(&a, 1, IBV_WR_SEND, 0, 10, NULL), EINVAL);
	EQUAL(to_rts(a.qp, &s), 0);
	attr.cur_qp_state = IBV_QPS_INIT;
	attr.qp_state = IBV_QPS_SQD;
	EQUAL(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE), EINVAL);
	EQUAL(ibv_modify_qp(a.qp, &attr, IBV_QP_ALT_PATH), EOPNOTSUPP);
	/* The peer is not there yet: what is posted stays. Then there is room for no more, and the list says where. */
	struct ibv_sge sge = { (uintptr_t)a.bytes, 8, a.mr->lkey };
	struct ibv_send_wr wr[5], *bad = NULL;
	memset(wr, 0, sizeof wr);
	for (int i = 0; i < 5; i++) {
		wr[i] = (struct ibv_send_wr){ .wr_id = i, .next = i < 4 ? &wr[i + 1] : NULL, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED };
		wr[i].wr.rdma.remote_addr = nb.addr;
		wr[i].wr.rdma.rkey = nb.rkey;
	}
	EQUAL(ibv_post_send(a.qp, wr, &bad), ENOMEM);
	CHECK(bad == &wr[3]);
	struct ibv_recv_wr rr[3], *bad_recv = NULL;
	for (int i = 0; i < 3; i++)
		rr[i] = (struct ibv_recv_wr){ .wr_id = i, .next = i < 2 ? &rr[i + 1] : NULL, .sg_list = &sge, .num_sge = 1 };
	EQUAL(ibv_post_recv(a.qp, rr, &bad_recv), ENOMEM);
	CHECK(bad_recv == &rr[2]);
	connect_qp(b.qp, &na, &s);
	for (int i = 0; i < 3; i++)
		expect(a.send_cq, i, IBV_WC_SUCCESS);
	/* Lists that make no sense are refused, whole or from there on. */
	wr[0].next = NULL;
	wr[0].opcode = 99;
	EQUAL(ibv_post_send(a.qp, wr, &bad), EINVAL);
	CHECK(bad == &wr[0]);
	wr[0].opcode = IBV_WR_SEND;
	wr[0].num_sge = 99;
	EQUAL(ibv_post_send(a.qp, wr, &bad), EINVAL);
	wr[0].num_sge = -1;
	EQUAL(ibv_post_send(a.qp, wr, &bad), EINVAL);
	wr[0].num_sge = 1;
	wr[0].sg_list = NULL;
	EQUAL(ibv_post_send(a.qp, wr, &bad), EINVAL);
	wr[0].sg_list = &sge;
	wr[0].send_flags = IBV_SEND_INLINE;
	sge.length = LEN;
	EQUAL(ibv_post_send(a.qp, wr, &bad), EINVAL);
	EQUAL(ibv_post_send(a.qp, NULL, &bad), 0);
	/* Into error, where all is flushed, and anew. */
	attr.qp_state = IBV_QPS_ERR;
	EQUAL(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE), 0);
	expect(a.recv_cq, 0, IBV_WC_WR_FLUSH_ERR);
	expect(a.recv_cq, 1, IBV_WC_WR_FLUSH_ERR);
	EQUAL(post_op(&a, 5, IBV_WR_SEND, 0, 10, NULL), 0);
	expect(a.send_cq, 5, IBV_WC_WR_FLUSH_ERR);
	/* What has completed and was not taken goes with the reset. */
	EQUAL(post_op(&a, 6, IBV_WR_SEND, 0, 10, NULL), 0);
	attr.qp_state = IBV_QPS_RESET;
	EQUAL(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE), 0);
	EQUAL(ibv_modify_qp(b.qp, &attr, IBV_QP_STATE), 0);
	connect_qp(a.qp, &nb, &s);
	connect_qp(b.qp, &na, &s);
	EQUAL(post_recv(&b, 6, 0, 10), 0);
	EQUAL(post_op(&a, 7, IBV_WR_SEND, 0, 10, NULL), 0);
	expect(a.send_cq, 7, IBV_WC_SUCCESS);
	expect(b.recv_cq, 6, IBV_WC_SUCCESS);
	close_end(&a);
	close_end(&b);
}

/* Two threads post to one queue pair and take from one queue. */
enum { EACH = 3000 };
struct shared {
	struct end *end;
	struct names to;
	int taken;
	unsigned char seen[2 * EACH];
	pthread_mutex_t lock;
};

static void *hammer(void *argument)
{
	struct shared *s = argument;
	static int next;
	int first = __sync_fetch_and_add(&next, 1) * EACH, posted = 0;
	while (posted < EACH || __sync_fetch_and_add(&s->taken, 0) < 2 * EACH) {
		if (posted < EACH) {
			int code = post_op(s->end, first + posted, IBV_WR_RDMA_WRITE, 0, 16, &s->to);
			CHECK(code == 0 || code == ENOMEM);
			posted += code == 0;
		}
		struct ibv_wc wc[4];
		int n = ibv_poll_cq(s->end->send_cq, 4, wc);
		CHECK(n >= 0);
		for (int i = 0; i < n; i++) {
			EQUAL(wc[i].status, IBV_WC_SUCCESS);
			EQUAL(__sync_fetch_and_add(&s->seen[wc[i].wr_id], 1), 0);
		}
		__sync_fetch_and_add(&s->taken, n);
	}
	return NULL;
}

static void two_threads(void)
{
	struct end a, b;
	open_end(&a);
	open_end(&b);
	connect_ends(&a, &b, &RC);
	struct shared s = { .end = &a, .to = names_of(&b) };
	pthread_t threads[2];
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&threads[i], NULL, hammer, &s));
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_join(threads[i], NULL));
	EQUAL(s.taken, 2 * EACH);
	close_end(&a);
	close_end(&b);
}

/* After fork the child has no device and the parent still has. */
static void fork_in_the_midst(void)
{
	struct end a, b;
	open_end(&a);
	open_end(&b);
	connect_ends(&a, &b, &RC);
	struct names nb = names_of(&b);
	EQUAL(post_op(&a, 1, IBV_WR_RDMA_WRITE, 0, 1000, &nb), 0);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		struct ibv_wc wc;
		CHECK(ibv_poll_cq(a.send_cq, 1, &wc) < 0);
		EQUAL(post_op(&a, 2, IBV_WR_RDMA_WRITE, 0, 10, &nb), ENODEV);
		EQUAL(post_recv(&a, 2, 0, 10), ENODEV);
		CHECK(!ibv_alloc_pd(a.context) && errno == ENODEV);
		CHECK(!ibv_reg_mr(a.pd, a.bytes, 10, 0) && errno == ENODEV);
		EQUAL(ibv_destroy_qp(a.qp), ENODEV);
		_exit(0);
	}
	wait_for(child);
	expect(a.send_cq, 1, IBV_WC_SUCCESS);
	EQUAL(post_op(&a, 3, IBV_WR_RDMA_WRITE, 0, 1000, &nb), 0);
	expect(a.send_cq, 3, IBV_WC_SUCCESS);
	close_end(&a);
	close_end(&b);
}

static int descriptors(void)
{
	DIR *d = opendir("/proc/self/fd");
	CHECK(d);
	int n = 0;
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

static long resident(void)
{
	long total, pages;
	FILE *f = fopen("/proc/self/statm", "r");
	CHECK(f && fscanf(f, "%ld %ld", &total, &pages) == 2);
	fclose(f);
	return pages * sysconf(_SC_PAGESIZE);
}

static void many_connections(int rounds)
{
	int fds = 0;
	long bytes = 0;
	for (int i = 0; i < rounds; i++) {
		struct end a, b;
		open_end(&a);
		open_end(&b);
		connect_ends(&a, &b, &RC);
		EQUAL(post_recv(&b, 1, 0, 10), 0);
		EQUAL(post_op(&a, 2, IBV_WR_SEND, 0, 10, NULL), 0);
		expect(a.send_cq, 2, IBV_WC_SUCCESS);
		expect(b.recv_cq, 1, IBV_WC_SUCCESS);
		close_end(&a);
		close_end(&b);
		if (i == rounds / 4) {
			fds = descriptors();
			bytes = resident();
		}
	}
	EQUAL(descriptors(), fds);
	if (resident() - bytes > 8 << 20) {
		fprintf(stderr, "%ld bytes more after %d connections\n", resident() - bytes, rounds);
		exit(1);
	}
}

/* Lists and masks at random: whatever is said to them, nothing breaks, and the device still works. */
static uint64_t state = 88172645463325252;
static uint64_t number(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

static void at_random(int rounds)
{
	struct end a, b;
	open_end(&a);
	open_end(&b);
	struct ibv_mw *mw = ibv_alloc_mw(a.pd, IBV_MW_TYPE_2);
	CHECK(mw);
	for (int i = 0; i < rounds; i++) {
		struct settings s = RC;
		s.type = i % 3 == 0 ? IBV_QPT_UD : i % 3 == 1 ? IBV_QPT_RC : IBV_QPT_UC;
		connect_ends(&a, &b, &s);
		struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .dgid = b.gid } };
		struct ibv_ah *ah = ibv_create_ah(a.pd, &to);
		CHECK(ah);
		for (int n = 0; n < 40; n++) {
			struct ibv_sge sge[6];
			struct ibv_send_wr wr[3], *bad = NULL;
			for (int k = 0; k < 6; k++)
				sge[k] = (struct ibv_sge){ (uintptr_t)a.bytes + number() % (LEN - 100), number() % 100, number() % 8 ? a.mr->lkey : (uint32_t)number() };
			for (int k = 0; k < 3; k++) {
				wr[k] = (struct ibv_send_wr){ .wr_id = k, .next = k < 2 ? &wr[k + 1] : NULL, .sg_list = sge, .num_sge = (int)(number() % 8) - 1,
					.opcode = number() % 17, .send_flags = number() % 32, .imm_data = (uint32_t)number() };
				if (s.type == IBV_QPT_UD) {
					wr[k].wr.ud.ah = ah;
					wr[k].wr.ud.remote_qpn = number() % 4 ? b.qp->qp_num : (uint32_t)number();
					wr[k].wr.ud.remote_qkey = number() % 2 ? 0x1111 : (uint32_t)number();
				} else {
					wr[k].wr.atomic.remote_addr = (uintptr_t)b.bytes + number() % LEN;
					wr[k].wr.atomic.compare_add = number() % 2 ? b.mr->rkey : number();
					wr[k].wr.atomic.rkey = b.mr->rkey;
				}
				wr[k].bind_mw.mw = number() % 2 ? mw : NULL;
				wr[k].bind_mw.rkey = number() % 2 ? ibv_inc_rkey(mw->rkey) : (uint32_t)number();
				wr[k].bind_mw.bind_info = (struct ibv_mw_bind_info){ number() % 2 ? a.mr : NULL, number(), number() % 1000, number() % 64 };
			}
			ibv_post_send(a.qp, wr, &bad);
			struct ibv_recv_wr rr = { .wr_id = n, .sg_list = sge, .num_sge = (int)(number() % 8) - 1 }, *bad_recv;
			ibv_post_recv(n % 2 ? a.qp : b.qp, &rr, &bad_recv);
			struct ibv_wc wc[8];
			CHECK(ibv_poll_cq(a.send_cq, 8, wc) >= 0 && ibv_poll_cq(b.recv_cq, 8, wc) >= 0 && ibv_poll_cq(a.recv_cq, 8, wc) >= 0);
			if (number() % 10 == 0) {
				struct ibv_qp_attr attr;
				for (size_t k = 0; k < sizeof attr; k++)
					((char *)&attr)[k] = number() % 4 ? 0 : (char)number();
				attr.qp_state = number() % 9;
				ibv_modify_qp(number() % 2 ? a.qp : b.qp, &attr, (int)(number() % (1 << 26)));
			}
		}
		EQUAL(ibv_destroy_ah(ah), 0);
		EQUAL(ibv_destroy_qp(a.qp), 0);
		EQUAL(ibv_destroy_qp(b.qp), 0);
		struct ibv_wc wc[16];
		while (ibv_poll_cq(a.send_cq, 16, wc) > 0 || ibv_poll_cq(b.recv_cq, 16, wc) > 0 || ibv_poll_cq(a.recv_cq, 16, wc) > 0 || ibv_poll_cq(b.send_cq, 16, wc) > 0)
			;
	}
	EQUAL(ibv_dealloc_mw(mw), 0);
	connect_ends(&a, &b, &RC);
	EQUAL(post_recv(&b, 1, 0, 10), 0);
	EQUAL(post_op(&a, 2, IBV_WR_SEND, 0, 10, NULL), 0);
	expect(a.send_cq, 2, IBV_WC_SUCCESS);
	expect(b.recv_cq, 1, IBV_WC_SUCCESS);
	close_end(&a);
	close_end(&b);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 100;
	wrong_orders();
	null_handles();
	wrong_states_and_lists();
	two_threads();
	fork_in_the_midst();
	at_random(rounds);
	many_connections(10 * rounds);
	puts("ok");
	return 0;
}
