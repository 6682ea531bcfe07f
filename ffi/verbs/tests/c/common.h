/* What the C programs of the tests share: two ends in one process, or in two that were forked before the device was opened. */
#ifndef COMMON_H
#define COMMON_H

#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                            \
	do {                                                                                        \
		if (!(condition)) {                                                                 \
			fprintf(stderr, "%s:%d: failed: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
			exit(1);                                                                    \
		}                                                                                   \
	} while (0)

#define EQUAL(a, b)                                                                                 \
	do {                                                                                        \
		long long left = (long long)(a), right = (long long)(b);                            \
		if (left != right) {                                                                \
			fprintf(stderr, "%s:%d: failed: %s is %lld, not %lld\n", __FILE__, __LINE__, #a, left, right); \
			exit(1);                                                                    \
		}                                                                                   \
	} while (0)

enum { LEN = 1 << 20 };

/* One end. */
struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *send_cq, *recv_cq;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	char *bytes;
	union ibv_gid gid;
};

/* What the other end has to know. */
struct names {
	uint32_t qpn, rkey;
	uint64_t addr;
	union ibv_gid gid;
};

/* How queue pairs of the ends are made and what they are given. */
struct settings {
	enum ibv_qp_type type;
	struct ibv_srq *srq;
	int send_wr, recv_wr;
	uint8_t timeout, retry_cnt, rnr_retry, min_rnr_timer;
	uint64_t ops;
};

static const struct settings RC = { IBV_QPT_RC, NULL, 64, 64, 14, 7, 7, 12, 0 };

static inline double seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static inline struct ibv_context *open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0]);
	struct ibv_context *c = ibv_open_device(list[0]);
	CHECK(c);
	ibv_free_device_list(list);
	return c;
}

static inline void open_end(struct end *e)
{
	memset(e, 0, sizeof *e);
	e->context = open_device();
	CHECK(!ibv_query_gid(e->context, 1, 0, &e->gid));
	e->pd = ibv_alloc_pd(e->context);
	CHECK(e->pd);
	e->send_cq = ibv_create_cq(e->context, 256, NULL, NULL, 0);
	e->recv_cq = ibv_create_cq(e->context, 256, NULL, NULL, 0);
	CHECK(e->send_cq && e->recv_cq);
	e->bytes = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(e->bytes != MAP_FAILED);
	int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;
	e->mr = ibv_reg_mr(e->pd, e->bytes, LEN, rights);
	CHECK(e->mr);
}

static inline struct ibv_qp *make_qp(struct end *e, const struct settings *s)
{
	struct ibv_qp_cap cap = { s->send_wr, s->recv_wr, 4, 4, 64 };
	struct ibv_qp *qp;
	if (s->ops) {
		struct ibv_qp_init_attr_ex ex = { .send_cq = e->send_cq, .recv_cq = e->recv_cq, .srq = s->srq, .cap = cap,
			.qp_type = s->type, .pd = e->pd, .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
			.send_ops_flags = s->ops };
		qp = ibv_create_qp_ex(e->context, &ex);
	} else {
		struct ibv_qp_init_attr init = { .send_cq = e->send_cq, .recv_cq = e->recv_cq, .srq = s->srq, .cap = cap, .qp_type = s->type };
		qp = ibv_create_qp(e->pd, &init);
	}
	CHECK(qp);
	return qp;
}

static inline struct names names_of(const struct end *e)
{
	struct names n = { e->qp ? e->qp->qp_num : 0, e->mr->rkey, (uintptr_t)e->bytes, e->gid };
	return n;
}

static inline int to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .pkey_index = 0, .qkey = 0x1111,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	return ibv_modify_qp(qp, &a, mask | (qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
}

static inline int to_rtr(struct ibv_qp *qp, const struct names *peer, const struct settings *s)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qpn, .max_dest_rd_atomic = 8,
		.min_rnr_timer = s->min_rnr_timer };
	a.ah_attr.is_global = 1;
	a.ah_attr.port_num = 1;
	a.ah_attr.grh.dgid = peer->gid;
	a.ah_attr.grh.hop_limit = 64;
	if (qp->qp_type == IBV_QPT_UD)
		return ibv_modify_qp(qp, &a, IBV_QP_STATE);
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (qp->qp_type != IBV_QPT_UC)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	return ibv_modify_qp(qp, &a, mask);
}

static inline int to_rts(struct ibv_qp *qp, const struct settings *s)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTS, .timeout = s->timeout, .retry_cnt = s->retry_cnt, .rnr_retry = s->rnr_retry,
		.max_rd_atomic = 8 };
	int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (qp->qp_type != IBV_QPT_UC && qp->qp_type != IBV_QPT_UD)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	return ibv_modify_qp(qp, &a, mask);
}

static inline void connect_qp(struct ibv_qp *qp, const struct names *peer, const struct settings *s)
{
	EQUAL(to_init(qp), 0);
	EQUAL(to_rtr(qp, peer, s), 0);
	EQUAL(to_rts(qp, s), 0);
}

/* Makes both ends of a pair, in this process. */
static inline void connect_ends(struct end *a, struct end *b, const struct settings *s)
{
	a->qp = make_qp(a, s);
	b->qp = make_qp(b, s);
	struct names na = names_of(a), nb = names_of(b);
	connect_qp(a->qp, &nb, s);
	connect_qp(b->qp, &na, s);
}

static inline int post_recv(struct end *e, uint64_t wr_id, size_t at, uint32_t len)
{
	struct ibv_sge sge = { (uintptr_t)e->bytes + at, len, e->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad = NULL;
	return ibv_post_recv(e->qp, &wr, &bad);
}

static inline int post_op(struct end *e, uint64_t wr_id, enum ibv_wr_opcode op, size_t at, uint32_t len, const struct names *to)
{
	struct ibv_sge sge = { (uintptr_t)e->bytes + at, len, e->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = op, .send_flags = IBV_SEND_SIGNALED }, *bad = NULL;
	if (to) {
		wr.wr.rdma.remote_addr = to->addr;
		wr.wr.rdma.rkey = to->rkey;
	}
	return ibv_post_send(e->qp, &wr, &bad);
}

/* Waits for a completion; gives 0 after so many seconds without one. */
static inline int poll_for(struct ibv_cq *cq, struct ibv_wc *wc, double most)
{
	double start = seconds();
	do {
		int n = ibv_poll_cq(cq, 1, wc);
		CHECK(n >= 0);
		if (n)
			return 1;
	} while (seconds() - start < most);
	return 0;
}

static inline struct ibv_wc expect(struct ibv_cq *cq, uint64_t wr_id, enum ibv_wc_status status)
{
	struct ibv_wc wc;
	CHECK(poll_for(cq, &wc, 30));
	if (wc.wr_id != wr_id || wc.status != status)
		fprintf(stderr, "wr_id %llu: %s\n", (unsigned long long)wc.wr_id, ibv_wc_status_str(wc.status));
	EQUAL(wc.wr_id, wr_id);
	EQUAL(wc.status, status);
	return wc;
}

static inline void close_end(struct end *e)
{
	if (e->qp)
		EQUAL(ibv_destroy_qp(e->qp), 0);
	EQUAL(ibv_dereg_mr(e->mr), 0);
	EQUAL(ibv_destroy_cq(e->send_cq), 0);
	EQUAL(ibv_destroy_cq(e->recv_cq), 0);
	EQUAL(ibv_dealloc_pd(e->pd), 0);
	EQUAL(ibv_close_device(e->context), 0);
	munmap(e->bytes, LEN);
}

/* Forks before any device is open; gives the child's process number, or 0 in it, and a socket to the other. */
static inline pid_t split(int *to_other)
{
	int both[2];
	CHECK(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, both));
	pid_t child = fork();
	CHECK(child >= 0);
	*to_other = both[child == 0];
	close(both[child != 0]);
	return child;
}

static inline struct names swap_names(int socket, const struct end *e)
{
	struct names mine = names_of(e), others;
	CHECK(send(socket, &mine, sizeof mine, 0) == sizeof mine);
	CHECK(recv(socket, &others, sizeof others, 0) == sizeof others);
	return others;
}

static inline void say(int socket)
{
	char byte = 1;
	CHECK(send(socket, &byte, 1, 0) == 1);
}
static inline void hear(int socket)
{
	char byte;
	CHECK(recv(socket, &byte, 1, 0) == 1);
}

static inline void wait_for(pid_t child)
{
	int status;
	CHECK(waitpid(child, &status, 0) == child);
	EQUAL(status, 0);
}

#endif
