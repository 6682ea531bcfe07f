/* What NCCL's transport over InfiniBand does with the library: it opens it by name, takes each function by name and version, and
 * asks for what is optional in its own way. The names are those in libnccl 2.32. */
#define _GNU_SOURCE
#include "common.h"
#include <dlfcn.h>

static void *library;

static void *named(const char *name, const char *version)
{
	void *f = dlvsym(library, name, version);
	if (!f)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(f);
	return f;
}

#define OF_VERSION(name, version) __typeof__(&name) f_##name = named(#name, version)
#define TAKE(name) OF_VERSION(name, "IBVERBS_1.1")

/* In headers since rdma-core 61. */
typedef int (*query_port_speed)(struct ibv_context *, uint32_t, uint64_t *);

int main(void)
{
	library = dlopen("libibverbs.so", RTLD_NOW);
	if (!library)
		library = dlopen("libibverbs.so.1", RTLD_NOW);
	CHECK(library);
	/* The name without a number is the system's, where its header is installed, unless ours comes first. */
	named("longhaul_cm_open", "LONGHAUL_PRIVATE_1");

	TAKE(ibv_get_device_list);
	TAKE(ibv_free_device_list);
	TAKE(ibv_get_device_name);
	TAKE(ibv_open_device);
	TAKE(ibv_close_device);
	TAKE(ibv_get_async_event);
	TAKE(ibv_ack_async_event);
	TAKE(ibv_query_device);
	TAKE(ibv_query_gid);
	TAKE(ibv_query_pkey);
	TAKE(ibv_query_qp);
	TAKE(ibv_alloc_pd);
	TAKE(ibv_dealloc_pd);
	TAKE(ibv_dereg_mr);
	TAKE(ibv_create_cq);
	TAKE(ibv_destroy_cq);
	TAKE(ibv_create_srq);
	TAKE(ibv_destroy_srq);
	TAKE(ibv_create_qp);
	TAKE(ibv_modify_qp);
	TAKE(ibv_destroy_qp);
	TAKE(ibv_create_ah);
	TAKE(ibv_destroy_ah);
	TAKE(ibv_fork_init);
	TAKE(ibv_event_type_str);
	OF_VERSION(ibv_reg_mr_iova2, "IBVERBS_1.8");
	OF_VERSION(ibv_query_ece, "IBVERBS_1.10");
	OF_VERSION(ibv_set_ece, "IBVERBS_1.10");
	OF_VERSION(ibv_reg_dmabuf_mr, "IBVERBS_1.12");
	query_port_speed f_port_speed = (query_port_speed)named("ibv_query_port_speed", "IBVERBS_1.16");
	struct ibv_mr *(*f_reg_mr)(struct ibv_pd *, void *, size_t, int) = named("ibv_reg_mr", "IBVERBS_1.1");
	int (*f_query_port)(struct ibv_context *, uint8_t, struct ibv_port_attr *) = named("ibv_query_port", "IBVERBS_1.1");
	CHECK(f_ibv_get_async_event && f_ibv_ack_async_event && f_ibv_create_ah && f_ibv_destroy_ah);

	CHECK(f_ibv_fork_init() != -1);
	int n = 0;
	struct ibv_device **list = f_ibv_get_device_list(&n);
	CHECK(list && n == 1 && !strcmp(f_ibv_get_device_name(list[0]), "longhaul0"));
	struct ibv_context *c = f_ibv_open_device(list[0]);
	CHECK(c);
	f_ibv_free_device_list(list);
	struct ibv_device_attr device;
	EQUAL(f_ibv_query_device(c, &device), 0);
	struct ibv_port_attr port;
	memset(&port, 0, sizeof port);
	EQUAL(f_query_port(c, 1, &port), 0);
	EQUAL(port.state, IBV_PORT_ACTIVE);
	EQUAL(port.link_layer, IBV_LINK_LAYER_ETHERNET);
	/* Width and speed by their codes, and in units of 100 Mbit/s. */
	uint64_t speed = 0;
	EQUAL(f_port_speed(c, 1, &speed), 0);
	EQUAL(speed, 1000);
	EQUAL(f_port_speed(c, 2, &speed), EINVAL);
	uint16_t key;
	EQUAL(f_ibv_query_pkey(c, 1, 0, &key), 0);
	union ibv_gid gid;
	EQUAL(f_ibv_query_gid(c, 1, 0, &gid), 0);

	/* NCCL takes any other error for a device that could. */
	struct ibv_pd *pd = f_ibv_alloc_pd(c);
	CHECK(pd);
	errno = 0;
	CHECK(!f_ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0));
	EQUAL(errno, EOPNOTSUPP);
	char *bytes = aligned_alloc(4096, 1 << 16);
	CHECK(bytes);
	memset(bytes, 7, 1 << 16);
	int rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_mr *plain = f_reg_mr(pd, bytes, 1 << 16, rights);
	struct ibv_mr *mr = f_ibv_reg_mr_iova2(pd, bytes, 1 << 16, (uintptr_t)bytes, rights | IBV_ACCESS_RELAXED_ORDERING);
	CHECK(plain && mr);

	struct ibv_cq *cq = f_ibv_create_cq(c, 128, NULL, NULL, 0);
	CHECK(cq);
	struct ibv_qp *qps[2];
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { 64, 64, 1, 1, 0 } };
		qps[i] = f_ibv_create_qp(pd, &init);
		CHECK(qps[i]);
		struct ibv_ece ece;
		EQUAL(f_ibv_query_ece(qps[i], &ece), 0);
		EQUAL(f_ibv_set_ece(qps[i], &ece), EOPNOTSUPP);
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = rights };
		EQUAL(f_ibv_modify_qp(qps[i], &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), 0);
		struct ibv_qp_attr r = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = qps[1 - i]->qp_num,
			.max_dest_rd_atomic = 1, .min_rnr_timer = 12 };
		r.ah_attr.is_global = 1;
		r.ah_attr.port_num = 1;
		r.ah_attr.grh.dgid = gid;
		r.ah_attr.grh.hop_limit = 255;
		EQUAL(f_ibv_modify_qp(qps[i], &r, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), 0);
		struct ibv_qp_attr s = { .qp_state = IBV_QPS_RTS, .timeout = 20, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
		EQUAL(f_ibv_modify_qp(qps[i], &s, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
			IBV_QP_MAX_QP_RD_ATOMIC), 0);
	}
	/* As it sends: a write, and one with immediate data that the receive without memory tells of. */
	struct ibv_recv_wr receive = { .wr_id = 1 }, *bad_receive;
	EQUAL(c->ops.post_recv(qps[1], &receive, &bad_receive), 0);
	struct ibv_sge sge = { (uintptr_t)bytes, 1000, mr->lkey };
	struct ibv_send_wr last = { .wr_id = 3, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .send_flags = IBV_SEND_SIGNALED, .imm_data = htobe32(1000) };
	struct ibv_send_wr first = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .next = &last }, *bad;
	first.wr.rdma.remote_addr = (uintptr_t)bytes + 4000;
	first.wr.rdma.rkey = mr->rkey;
	memset(bytes, 9, 1000);
	EQUAL(c->ops.post_send(qps[0], &first, &bad), 0);
	int seen = 0;
	for (double start = seconds(); seen != 3 && seconds() - start < 20;) {
		struct ibv_wc wc;
		if (c->ops.poll_cq(cq, 1, &wc) != 1)
			continue;
		EQUAL(wc.status, IBV_WC_SUCCESS);
		CHECK(wc.wr_id == 3 || (wc.wr_id == 1 && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.imm_data == htobe32(1000)));
		seen |= wc.wr_id == 3 ? 1 : 2;
	}
	EQUAL(seen, 3);
	EQUAL(bytes[4999], 9);
	EQUAL(bytes[5000], 7);
	struct ibv_qp_attr is;
	struct ibv_qp_init_attr was;
	EQUAL(f_ibv_query_qp(qps[0], &is, IBV_QP_STATE, &was), 0);
	EQUAL(is.qp_state, IBV_QPS_RTS);
	CHECK(strlen(f_ibv_event_type_str(IBV_EVENT_QP_FATAL)) > 3);

	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 16, .max_sge = 1 } };
	struct ibv_srq *srq = f_ibv_create_srq(pd, &shared);
	CHECK(srq);
	EQUAL(f_ibv_destroy_srq(srq), 0);
	EQUAL(f_ibv_destroy_qp(qps[0]), 0);
	EQUAL(f_ibv_destroy_qp(qps[1]), 0);
	EQUAL(f_ibv_destroy_cq(cq), 0);
	EQUAL(f_ibv_dereg_mr(mr), 0);
	EQUAL(f_ibv_dereg_mr(plain), 0);
	EQUAL(f_ibv_dealloc_pd(pd), 0);
	EQUAL(f_ibv_close_device(c), 0);
	free(bytes);
	puts("ok");
	return 0;
}
