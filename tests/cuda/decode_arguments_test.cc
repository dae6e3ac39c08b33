#include "cuda/decode_problem.h"
#include "unit/cache_fixture.h"

namespace vecinfer::testing {
namespace {

using cuda::CacheView;
using cuda::DecodeParams;

class DecodeArgumentsTest : public CudaTest {
protected:
    /// The message of the error that a changed call gives.
    template <class Change>
    std::string refused(Change&& change) {
        DecodeProblem problem({.kv_lens = {100, 200}, .page_size = 64, .window = {16, 2}});
        CacheView cache = problem.cache();
        DecodeParams params = problem.params();
        change(cache, params);
        const Status s =
            cuda::decode_attention(problem.codec(), cache, params, problem.workspace(), problem.workspace_bytes(), nullptr);
        EXPECT_FALSE(s.ok());
        EXPECT_EQ(cudaGetLastError(), cudaSuccess);
        return s.message();
    }
};

TEST_F(DecodeArgumentsTest, AreNamedWhenTheyAreBad) {
    EXPECT_EQ(refused([](CacheView&, DecodeParams& p) { p.batch = 0; }), "batch: got 0, expected 1 to 4096");
    EXPECT_EQ(refused([](CacheView&, DecodeParams& p) { p.num_q = 17; }), "num_q: got 17, expected 1 to 16");
    EXPECT_EQ(refused([](CacheView&, DecodeParams& p) { p.num_qo_heads = 5; }),
              "num_qo_heads: got 5, expected a positive multiple of 2 KV heads");
    EXPECT_EQ(refused([](CacheView&, DecodeParams& p) { p.kv_lens = nullptr; }), "kv_lens: got null, expected device memory");
    EXPECT_EQ(refused([](CacheView&, DecodeParams& p) { p.q = static_cast<const char*>(p.q) + 1; }),
              "q: got an address that is 1 modulo 4, expected a multiple of 4 bytes");
    EXPECT_EQ(refused([](CacheView& c, DecodeParams&) { c.pages = static_cast<char*>(c.pages) + 8; }),
              "pages: got an address that is 8 modulo 16, expected a multiple of 16 bytes");
    EXPECT_EQ(refused([](CacheView& c, DecodeParams&) { c.page_size = 48; }),
              "page_size: got 48, expected a power of two from 16 on with a block table");
    EXPECT_EQ(refused([](CacheView& c, DecodeParams&) {
                  c.block_table = nullptr;
                  c.page_size = 80;
              }),
              "page_size: got 80, expected a multiple of 64 without a block table");
    EXPECT_NE(refused([](CacheView& c, DecodeParams&) {
                  c.block_table = nullptr;
                  c.page_size = 1 << 30;
              }).find("bytes a page, expected at most 4 GiB a page"),
              std::string::npos);
    EXPECT_EQ(refused([](CacheView& c, DecodeParams&) { c.window_rows = 17; }), "window_rows: got 17, expected 18 to 1048576");
    EXPECT_EQ(refused([](CacheView& c, DecodeParams&) { c.window_k = nullptr; }), "window_k: got null, expected device memory");
    EXPECT_EQ(refused([](CacheView&, DecodeParams& p) { p.soft_cap = -1; }), "soft_cap: got -1, expected 0 or more");
}

TEST_F(DecodeArgumentsTest, WorkspaceMustBeLargeEnough) {
    DecodeProblem problem({.kv_lens = {100}});
    const Status s =
        cuda::decode_attention(problem.codec(), problem.cache(), problem.params(), problem.workspace(), 1000, nullptr);
    EXPECT_EQ(s.code(), ErrorCode::invalid_argument);
    EXPECT_NE(s.message().find("workspace_bytes: got 1000, expected at least"), std::string::npos) << s.message();
}

TEST_F(DecodeArgumentsTest, AnEarlierErrorIsReported) {
    DecodeProblem problem({.kv_lens = {100}});
    void* p = nullptr;
    ASSERT_NE(cudaMalloc(&p, std::size_t{1} << 60), cudaSuccess);
    const Status s = problem.run();
    EXPECT_EQ(s.code(), ErrorCode::out_of_memory) << s.message();
    EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
    EXPECT_TRUE(problem.run().ok());
}

TEST_F(DecodeArgumentsTest, PlanNamesTheKernel) {
    DecodeProblem problem({.kv_lens = {100}});
    DecodeParams params = problem.params();
    Result<cuda::DecodePlan> plan = cuda::plan_decode(problem.codec(), problem.cache(), params);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan->kernel.substr(0, plan->kernel.rfind('/')), "d4d4/hd128/rows4");
    EXPECT_EQ(plan->note, "");
    params.soft_cap = 1;
    plan = cuda::plan_decode(problem.codec(), problem.cache(), params);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    EXPECT_EQ(plan->kernel.substr(0, plan->kernel.rfind('/')), "d4d4/hd128/rows4/general");
}

// Needs no GPU: refused before anything is copied.
TEST(LayerCodecTest, SaysWhatItDoesNotKnow) {
    const auto codec = [](int sub_dim, int head_dim, bool per_subspace) {
        return OwnedCache({.head_dim = head_dim, .sub_dim = sub_dim, .per_subspace = per_subspace});
    };
    const OwnedCache plain = codec(4, 128, false);
    const OwnedCache wide({.head_dim = 128, .sub_dim = 4, .code_bits = 10});
    const OwnedCache odd = codec(4, 96, false);
    const OwnedCache product = codec(8, 128, true);
    const auto message = [](const OwnedCache& k, const OwnedCache& v) {
        const Result<cuda::LayerCodec> made = cuda::LayerCodec::create(k.codec(), v.codec());
        EXPECT_EQ(made.status().code(), ErrorCode::unsupported);
        return made.status().message();
    };
    EXPECT_EQ(message(wide, plain),
              "k: got a codec with sub_dim 4 and code_bits 10, expected d2b8, d4b8, d8b8, d4b12, d8b12, d1b2, d1b3 or d1b4");
    EXPECT_EQ(message(plain, odd), "v: got head_dim 96, expected 64, 128 or 256");
    EXPECT_EQ(message(product, plain), "k: got a codebook per subspace of d8b8, expected d2b8 or d4b8 for those");
}

}  // namespace
}  // namespace vecinfer::testing
