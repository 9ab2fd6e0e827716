#include <gtest/gtest.h>

#include "app/programs.hpp"

namespace cifar_mpi::test {
namespace {

TEST_F(Programs, RefuseBadDataOnAllRanksWithOneSentence) {
  const std::string rest = " --threads 1 --run-dir " + file("never") + " --data ";
  const std::string train = kTrain + " --batch-size 8" + rest;
  write_file(file("text.h5"), "this is not HDF5\n");
  ASSERT_EQ(run_command("head -c 100000 " + file("small.h5") + " > " + file("short.h5")).code, 0);
  ASSERT_EQ(run_command(kPack + " --synthetic 64 --image 16x16x3 --out " + file("tiny.h5")).code, 0);
  expect_refusal(mpirun(2, train + file("missing.h5")), 3, file("missing.h5"));
  expect_refusal(mpirun(2, train + file("text.h5")), 3, file("text.h5"));
  expect_refusal(mpirun(2, train + file("short.h5")), 3, file("short.h5"));
  expect_refusal(mpirun(2, train + file("tiny.h5")), 3, "smaller than the crop of 24x24");
  expect_refusal(mpirun(2, train + file("small.h5") + " --batch-size 64"), 3,
                 "fewer than one global batch of 128");
  expect_refusal(mpirun(2, kTrain + rest + file("small.h5") + " --global-batch 9"), 2,
                 "cannot be divided by 2 ranks");
  EXPECT_FALSE(std::filesystem::exists(file("never"))) << "a refused start leaves no folder";
}

TEST_F(Programs, MissACheckpointBeforeADataset) {
  const std::string elsewhere = "mkdir " + file("elsewhere") + "; cd " + file("elsewhere") + "; ";
  expect_refusal(run_command(elsewhere + kEval + " nowhere"), 4, "nowhere': No such file or directory");
}

TEST_F(Programs, SayThatAConfigIsABinaryFile) {
  expect_refusal(run_command(kTrain + small("never") + " --config " + file("small.h5")), 2,
                 "small.h5 is a binary file, not one in TOML");
}

TEST_F(Programs, SayWhyAFolderOfBinaryFilesCannotBeRead) {
  const std::string from = kPack + " --out " + file("new.h5") + " --from ";
  const std::string remedy = "; fetch CIFAR-10 with tools/fetch_cifar10, or name the folder";
  expect_refusal(run_command(from + file("nowhere")), 3,
                 file("nowhere") + "': No such file or directory" + remedy);
  expect_refusal(run_command(from + file("small.h5")), 3, "small.h5': it is not a folder" + remedy);
}

TEST_F(Programs, NameTheRecipeThatSetsWhatTheyRefuse) {
  const std::string train = kTrain + usual("never") + " --model fast94";
  const std::string source = "in the recipe of --model fast94: ";
  for (const std::string way : {"local", "server"}) {
    expect_refusal(run_command(train + " --update " + way), 2,
                   source + "--image-size 24x3,28x3,32 works only with --update all-reduce, not with " + way +
                       ": --image-size full works with every way to update; give --image-size full");
  }
  expect_refusal(run_command(train + " --flip off"), 2,
                 source + "--views 6 shows mirrored images, but --flip off trains on none; give --views 1");
  expect_refusal(run_command(train + " --input-size 24"), 2,
                 source + "--image-size 24x3,28x3,32 does not fit the network's input of 24x24");
  expect_refusal(run_command(train + " --image-size 33"), 2, "cifar_mpi_train: --image-size 33 does not fit");
  expect_refusal(mpirun(3, kTrain + data() + " --run-dir " + file("never") + " --model resnet20"), 2,
                 "in the recipe of --model resnet20: --global-batch 128 cannot be divided by 3 ranks");
}

TEST_F(Programs, SayWhichRankFoundTheError) {
  // Only rank 1 gets a missing file. (mpirun could start two programs, but Open MPI 5.0.7 crashes.)
  write_file(file("by_rank.sh"),
             "name=small.h5; [ \"$OMPI_COMM_WORLD_RANK\" = 0 ] || name=missing.h5\nexec " + kTrain +
                 " --threads 1 --batch-size 8 --run-dir " + file("never") + " --data " + file("$name"));
  expect_refusal(mpirun(2, "bash " + file("by_rank.sh")), 3, "rank 1");
}

/// Without a driver or CUDA in the program, an allocation of GPUs must not be spent on CPUs.
TEST_F(Programs, LeaveNoGpuOfAJobIdleUnasked) {
  const std::string job = "env CUDA_VISIBLE_DEVICES= SLURM_JOB_ID=1 SLURM_GPUS_ON_NODE=";
  const std::string train = " " + kTrain + small("job") + " --device ";
  expect_refusal(run_command(job + "2" + train + "auto"), 6, "this SLURM job has GPUs, and --device cpu");
  EXPECT_EQ(run_command(job + "0" + train + "auto").code, 0);
  EXPECT_EQ(run_command(job + "2" + train + "cpu --steps 3").code, 0);
}

TEST_F(Programs, RefuseWhereNothingCanBeWritten) {
  write_file(file("a_file"), "");
  for (const std::string run : {"a_file", "a_file/run"})
    expect_refusal(mpirun(2, kTrain + small(run)), 5,
                   file(run) + ": it, or a folder above it, is a file; choose another with --run-dir");
}

TEST_F(Programs, KeepTheLastCheckpointWhenTheDiskIsFull) {
  ASSERT_EQ(mpirun(1, kTrain + usual("full")).code, 0);
  const std::string before = read_file(file("full/checkpoints/step_000000002.h5"));
  // A file-size limit stands in for a full disk, because both make the write itself fail. It is smaller than
  // a checkpoint (8.15 MiB). One rank only, because the limit also holds for MPI's shared memory.
  expect_refusal(run_command("ulimit -f 8192; OMPI_MCA_btl=self " + kTrain + usual("full") + " --steps 4"), 5,
                 "step_000000004.h5");
  EXPECT_EQ(read_file(file("full/checkpoints/step_000000002.h5")), before);
  EXPECT_EQ(run_command("ls " + file("full/checkpoints")).output, "latest\nstep_000000002.h5\n");
  EXPECT_EQ(run_command(kEval + " " + file("full") + data()).code, 0);
}

TEST_F(Programs, RefuseCheckpointsThatDoNotFit) {
  ASSERT_EQ(mpirun(1, kTrain + small("mine")).code, 0);
  expect_refusal(mpirun(1, kTrain + small("mine") + " --seed 5"), 4, "--seed is 1, this one's is 5");
  expect_refusal(mpirun(1, kTrain + small("other") + " --resume " + file("nowhere.h5")), 4,
                 file("nowhere.h5"));
  expect_refusal(mpirun(1, kTrain + small("other") + " --resume " + file("small.h5")), 4, file("small.h5"));
  std::filesystem::create_directories(file("empty"));
  expect_refusal(run_command(kEval + " " + file("empty") + data()), 4,
                 "/checkpoints/step_*.h5); name another run directory, or wait for its first checkpoint");
  write_file(file("text"), "no checkpoint");
  const std::string remedy = "; name a run directory that has a checkpoint, or the file of one";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"nowhere", "': No such file or directory" + remedy},
      {"empty", "': it is a folder without checkpoints/step_*.h5" + remedy},
      {"text", "': it is not an HDF5 file" + remedy},
      {"small.h5", " is an HDF5 file, but not a cifar_mpi checkpoint" + remedy}};
  for (const auto& [name, part] : cases) {
    SCOPED_TRACE(name);
    expect_refusal(run_command(kTrain + small("begun") + " --init-from " + file(name)), 4, part);
    if (name != "empty") expect_refusal(run_command(kEval + " " + file(name) + data()), 4, part);
  }
}

TEST_F(Programs, RefuseAtOnceWhatIsNoFile) {
  ASSERT_EQ(run_command("mkfifo " + file("pipe") + "; mkdir " + file("folder") + "; mkfifo " +
                        file("folder/data_batch_1.bin"))
                .code,
            0);
  const std::string soon = "timeout 60 ";
  for (const std::string& path : {file("pipe"), file("folder"), std::string("/dev/zero")}) {
    SCOPED_TRACE(path);
    expect_refusal(run_command(soon + kTrain + " --run-dir " + file("never") + " --data " + path), 3, path);
    expect_refusal(run_command(soon + kTrain + data() + " --config " + path), 2, path);
    expect_refusal(run_command(soon + kTrain + small("never") + " --resume " + path), 4, path);
    expect_refusal(run_command(soon + kEval + " " + path + data()), 4, path);
  }
  const std::string pack = soon + kPack + " --out " + file("new.h5");
  expect_refusal(run_command(pack + " --from " + file("folder")), 3, "data_batch_1.bin': it is a pipe");
  ASSERT_EQ(run_command("mkfifo " + file("folder/train_lables.json")).code, 0);
  const std::string from_png = pack + " --from-png " + file("folder");
  const Outcome refused = run_command(from_png);
  if (refused.output.find("without libpng") != std::string::npos) return;
  expect_refusal(refused, 3, "train_lables.json': it is a pipe");
  ASSERT_EQ(run_command("cd " + file("folder") +
                        " && rm train_lables.json && echo [1] > train_lables.json && "
                        "mkfifo data_batch_1.png")
                .code,
            0);
  expect_refusal(run_command(from_png), 3, "it is a pipe");
}

TEST_F(Programs, FindTheDatasetWhereTheySay) {
  // The datasets differ in size; the log names the size.
  const std::vector<std::pair<std::string, int>> sets{
      {"given.h5", 61}, {"named.h5", 62}, {"here/data/cifar10.h5", 63}, {"installed/data/cifar10.h5", 64}};
  for (const auto& [name, count] : sets) {
    const std::string pack = kPack + " --synthetic " + std::to_string(count) + " --out " + file(name);
    ASSERT_EQ(run_command(pack).code, 0);
  }
  ASSERT_EQ(
      run_command("mkdir -p " + file("installed/bin") + " && cp " + kTrain + " " + file("installed/bin"))
          .code,
      0);
  const std::string train =
      file("installed/bin/cifar_mpi_train") + " --steps 1 --batch-size 4 --threads 1 --run-dir ";
  const std::string here = "cd " + file("here") + "; ";
  const std::string named = "CIFAR_MPI_DATA=" + file("named.h5") + " ";
  const std::vector<std::pair<std::string, std::string>> cases{
      {here + named + train + file("run_1") + " --data " + file("given.h5"), "61 training"},
      {here + named + train + file("run_2"), "62 training"},
      {here + train + file("run_3"), "63 training"},
      {"cd /; " + train + file("run_4"), "64 training"},
  };
  for (const auto& [command, part] : cases) {
    const std::string outcome = output_of(run_command(command));
    EXPECT_EQ(count_lines_with(outcome, part), 1) << outcome;
  }
  ASSERT_EQ(run_command("rm " + file("installed/data/cifar10.h5")).code, 0);
  expect_refusal(run_command("cd /; " + train + file("run_5")), 3, file("installed/data/cifar10.h5"));
}

TEST_F(Programs, SayThatTheEnvironmentNamedTheDataset) {
  const std::string run_dir = file("by_environment");
  output_of(run_command("CIFAR_MPI_DATA=" + file("small.h5") + " " + kTrain + " --run-dir " + run_dir +
                        " --batch-size 8 --steps 1 --threads 1"));
  for (const std::string& command : {kTrain, kBin + "/cifar_mpi_eval " + run_dir})
    expect_refusal(run_command("CIFAR_MPI_DATA=" + file("missing.h5") + " " + command), 3,
                   "CIFAR_MPI_DATA names it");
}

TEST_F(Programs, FindBeforeTheWorkThatItsResultCannotBeWritten) {
  for (const std::string& path : {std::string("/dev/full"), file("nowhere/result.json")}) {
    expect_refusal(run_command(kBench + " allreduce --seconds 3600 --json " + path), 5, path);
  }
  // The source is not read.
  expect_refusal(run_command(kPack + " --from " + file("no_source") + " --out /dev/full"), 5, "/dev/full");
}

TEST_F(Programs, SayThatImagesAreTooSmallToTrain) {
  const std::string small =
      output_of(run_command(kPack + " --synthetic 8 --image 24x23x1 --out " + file("narrow.h5")));
  EXPECT_EQ(count_lines_with(small, "warning: smaller than the 24x24"), 1) << small;
  const Outcome enough = run_command(kPack + " --synthetic 8 --image 24x24x1 --out " + file("square.h5"));
  EXPECT_EQ(count_lines_with(enough.output, "warning"), 0) << enough.output;
}

}  // namespace
}  // namespace cifar_mpi::test
