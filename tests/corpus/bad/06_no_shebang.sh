#SBATCH --time=01:00:00
#SBATCH --mem=4G
python train.py
